"""What would happen without a defence: attacks that succeed then, so they do not pass emptily."""

import secrets

import pytest

from tests.system.security.arena import Arena
from tests.system.security.protocol import ATTACKS, forge


async def test_a_host_whose_nonces_can_be_guessed_believes_a_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One false frame, with the right nonce, is all that an attack lacks."""

    def zeros(count: int | None = None) -> str:
        return "00" * (count or 8)

    attack = next(a for a in ATTACKS if a.name == "forge-from-the-cell")
    arena = await Arena.start("process")
    try:
        monkeypatch.setattr(secrets, "token_hex", zeros)
        async with arena.session() as session:
            found = await forge(arena, session, attack)
    finally:
        await arena.close()
    assert "one reply: the lie was believed" in found
