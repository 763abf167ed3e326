"""Numbers for people."""

from perflab.present import units


def test_seconds_have_their_sign_and_the_unit_of_their_size() -> None:
    assert [units.seconds(value) for value in (-0.5, -2e-3, 0.0, 2e-9, None)] == ["-500 ms", "-2 ms", "0 s", "2 ns", ""]
