"""The step in fp64: loss and gradients of a decoder, and AdamW's update, written to be read."""

import torch
from torch.nn.functional import cross_entropy, silu

from ..post_res.reference import post_res
from ..read.reference import read

#: Of all norms, and of the coefficients' own.
EPS, READ_EPS, ITERATIONS = 1e-6, 1e-20, 20
RATE, DECAY, ADAM_EPS = 1e-3, 0.1, 1e-20
BETA_1, BETA_2 = 0.9, 0.95
BALANCE_RATE = 1e-3


def step(state, tokens, shape, residual, choices=None, slack=0.0):
    """Loss [1] and the gradient of every weight, by name, in fp64.

    state     weights by name, and the experts' biases (`sites.F.3.balance`)
    tokens    [B, S + 1]
    residual  residual, hc or mhc
    choices   experts [T, active] by layer, as an implementation chose them. Scores that differ by less than a dtype's
              rounding may be ranked either way, and the loss is not continuous there. So a choice is taken over if
              every expert in it scores at most `slack` less than each one left out, and refused else; without choices,
              experts are ranked in fp64.

    Fails: ValueError for a choice that the slack does not explain.
    """
    w = {name: value.detach().double() for name, value in state.items()}
    weights = {name: value.requires_grad_() for name, value in w.items() if not name.endswith(".balance")}
    h = w["embedding"][tokens[:, :-1]]
    x = h if residual == "residual" else h[:, :, None].expand(-1, -1, shape["n"], -1)
    for index in range(len(w["sites.g"])):
        prefix = f"sites.F.{index}."
        own = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
        chosen = choices and choices.get(prefix[:-1])

        def wrapped(u, own=own, g=w["sites.g"][index], chosen=chosen):
            return layer(norm(u, g).view(h.shape), own, shape, chosen, slack).view(u.shape)

        x = SITES[residual](x.flatten(0, 1), wrapped, w, index).view(x.shape)
    if residual != "residual":
        x = x.mean(2)
    logits = norm(x, w["g"]) @ w["head"].T
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    found = torch.autograd.grad(loss, list(weights.values()))
    return {"loss": loss.detach().view(1), **dict(zip(weights, found, strict=True))}


def update(state, gradients, choices, memory):
    """Weights after AdamW's next step: decay is apart from the moments.

    Beside them the biases of experts, moved by a step that chose so: towards those that got less than the mean.

    gradients  by weight
    choices    of the step, by layer, as for `step`
    memory     a dictionary that keeps the moments from step to step: empty before the first
    """
    t = memory["t"] = memory.get("t", 0) + 1
    after = {}
    for name, gradient in gradients.items():
        g, w = gradient.double(), state[name].double()
        first, second = memory.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
        first = BETA_1 * first + (1 - BETA_1) * g
        second = BETA_2 * second + (1 - BETA_2) * g**2
        memory[name] = first, second
        toward = (first / (1 - BETA_1**t)) / ((second / (1 - BETA_2**t)).sqrt() + ADAM_EPS)
        after[name] = w - RATE * DECAY * w - RATE * toward
    for layer_name, chosen in choices.items():
        name = f"{layer_name}.balance"
        load = torch.bincount(chosen.flatten(), minlength=len(state[name])).double()
        after[name] = state[name].double() + BALANCE_RATE * (load.mean() - load).sign()
    return after


def layer(v, w, shape, chosen, slack):
    """The layer function that these weights are of: [B, S, C] -> [B, S, C]."""
    if "query" in w:
        return attention(v, w, shape)
    if "router" in w:
        return experts(v.flatten(0, 1), w, shape, chosen, slack).view(v.shape)
    return swiglu(v, w["up"], w["down"])


def plain(x, F, w, index):
    """x + F(x)."""
    return x + F(x)


def unconstrained(x, F, w, index):
    """Hyper-connections: equation 5 of arXiv 2512.24880, a stream at a time."""
    n = x.shape[1]
    theta, (a_pre, a_post, a_res), b = w["sites.theta"][index], w["sites.a"][index], w["sites.b"][index]
    pre, post, res = [], [], []
    for stream in range(n):
        one = x[:, stream]
        one = one / (one.square().mean(1, keepdim=True) + READ_EPS).sqrt()
        pre.append(a_pre * torch.tanh(one @ theta[:, 0]) + b[stream])
        post.append(a_post * torch.tanh(one @ theta[:, 1]) + b[n + stream])
        # What this stream gives to each of the others.
        res.append(a_res * torch.tanh(one @ theta[:, 2:]) + b[2 * n :].view(n, n)[:, stream])
    u = sum(weight[:, None] * x[:, stream] for stream, weight in enumerate(pre))
    return post_res(x, F(u), torch.stack(post, 1), torch.stack(res, 2))


def constrained(x, F, w, index):
    """mHC. phi is used as tf32 holds it; its gradient passes the rounding as if it were none."""
    phi = w["sites.phi"][index]
    phi = phi + (tf32(phi) - phi).detach()
    u, h_post, h_res = read(x, phi, w["sites.a"][index], w["sites.b"][index], READ_EPS, ITERATIONS)
    return post_res(x, F(u), h_post, h_res)


SITES = {"residual": plain, "hc": unconstrained, "mhc": constrained}


def tf32(value):
    """The nearest number with 10 bits behind the leading one; of two that are as near, the one away from 0."""
    fraction, exponent = torch.frexp(value)
    return torch.ldexp((fraction.abs() * 2**11 + 0.5).floor() / 2**11, exponent) * fraction.sign()


def norm(x, g):
    """x over its root mean square, times g."""
    return g * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def swiglu(v, up, down):
    """down (silu(gate v) * up v); gate's rows stand above up's."""
    gate, up = up.chunk(2)
    return (silu(v @ gate.T) * (v @ up.T)) @ down.T


def attention(v, w, shape):
    """Head by head: keys and values from a compressed vector, and one turned key for all heads."""
    d, r = shape["head_dim"], shape["rope"]
    c, shared_key = (v @ w["compress"].T).split([shape["kv_rank"], r], -1)
    c = norm(c, w["g"])
    shared_key = turned(shared_key)
    S = v.shape[1]
    future = torch.ones(S, S, dtype=torch.bool, device=v.device).triu(1)
    heads = []
    for query, expand in zip(w["query"].split(d + r), w["expand"].split(2 * d), strict=True):
        q, q_turned = (v @ query.T).split([d, r], -1)
        k, value = (c @ expand.T).split(d, -1)
        scores = (q @ k.mT + turned(q_turned) @ shared_key.mT) / (d + r) ** 0.5
        scores = scores.masked_fill(future, -torch.inf).exp()
        heads.append(scores / scores.sum(-1, keepdim=True) @ value)
    return torch.cat(heads, -1) @ w["out"].T


def turned(v):
    """v [B, S, r]: neighbours as complex numbers, turned by position / 10000^(2i/r)."""
    S, r = v.shape[1:]
    speed = 10000.0 ** (-torch.arange(0, r, 2, dtype=torch.float64, device=v.device) / r)
    angle = torch.arange(S, dtype=torch.float64, device=v.device)[:, None] * speed
    pairs = torch.view_as_complex(v.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def experts(v, w, shape, chosen, slack):
    """The shared experts' sum, and of the routed ones the best by score and bias, weighed by score alone."""
    scores = (v @ w["router"].T).sigmoid()
    ranked = scores.detach() + w["balance"]
    if chosen is None:
        chosen = ranked.topk(shape["active"]).indices
    taken = torch.zeros_like(ranked, dtype=torch.bool).scatter(1, chosen, True)
    refuse_worse(ranked, taken, shape["active"], slack)
    gates = scores * taken
    gates = gates / gates.sum(1, keepdim=True)
    y = swiglu(v, w["shared.up"], w["shared.down"])
    for expert, (up, down) in enumerate(zip(w["up"], w["down"], strict=True)):
        y = y + gates[:, expert, None] * swiglu(v, up, down)
    return y


def refuse_worse(ranked, taken, active, slack):
    """Fails: ValueError unless `active` experts are taken, each at most `slack` below the best one that is left out."""
    if not taken.sum(1).eq(active).all():
        raise ValueError(f"experts: a token was not sent to {active} different ones")
    worst = ranked.masked_fill(~taken, torch.inf).amin(1)
    best_left = ranked.masked_fill(taken, -torch.inf).amax(1)
    lost = (best_left - worst).max().item()
    if lost > slack:
        raise ValueError(f"experts: one scores {lost:.2g} less than one left out; rounding explains {slack:.2g}")
