"""A policy engine for one trajectory that first looks at what its draft says.

It makes at most one request of the engine behind it per call and hands back what stands as
"aborted": the episode then asks for the rest, from the exact last token, and the gate may close in
between. With `residual` and weights that are loaded between the two requests of one place, the
token there is exactly of neither version.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from agentrl.chat.renderer import ChatRenderer
from agentrl.policy import (
    Completion,
    FinishReason,
    GenerateRequest,
    ScoreRequest,
    Scores,
    ScoringEngine,
)
from agentrl.rollout.drafts.calls import find_call_cut
from agentrl.rollout.drafts.draft import DraftedTurn, DraftTrajectory
from agentrl.rollout.drafts.verify import AcceptanceRule, Alternatives, cut, settlement
from agentrl.runtime.seeds import derive

Reuse = Literal["execute", "verify", "trust"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReuseSettings:
    """Rule by which drafts are judged, and the use of the environment in between."""

    rule: AcceptanceRule = field(default_factory=AcceptanceRule)
    residual: bool = False
    """True to draw a rejected token from the residual, so that the result is exactly p."""
    alternatives: int = 20
    """Tokens per place of the drafting policy that the residual knows."""
    reuse: Reuse = "verify"

    def __post_init__(self) -> None:
        if self.residual and not self.rule.is_exact:
            raise ValueError(
                "residual sampling needs a leniency of at most 1 and a scale of at least 1, got "
                f"{self.rule.leniency} and {self.rule.scale}; change them, or remove them to use "
                "the defaults"
            )


_NOTHING = Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")


@dataclass(slots=True, kw_only=True)
class DraftingEngine:
    """See the module. One for one trajectory; it also takes note of what the next one needs."""

    engine: ScoringEngine
    chat: ChatRenderer
    reusing: DraftReuseSettings
    draft: DraftTrajectory | None
    seed: int
    """Seed of the draws that judge the draft; another one every time."""
    known: dict[int, Alternatives] = field(default_factory=dict[int, Alternatives])
    """The likeliest tokens at each place of the context that was sampled; with `residual` only."""
    reused_tokens: int = 0
    sampled_tokens: int = 0

    _turn: int = -1
    _begun: int = 0
    _end: int | None = None
    _settles: bool = False
    """True when the next token is the one that was rejected, or could not be judged."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the accepted tokens of the draft at this place, or sample."""
        if len(request.prompt) != self._end:
            self._turn, self._begun = self._turn + 1, 0
        turn = self._find_proposal(request)
        if turn is None:
            self.draft = None
            completion = await self._sample(request)
        elif self._settles:
            completion = await self._settle(request, turn)
        else:
            completion = await self._verify(request, turn)
        self._begun += len(completion.token_ids)
        self._end = len(request.prompt) + len(completion.token_ids)
        return completion

    def _find_proposal(self, request: GenerateRequest) -> DraftedTurn | None:
        draft, begun = self.draft, self._begun
        if draft is None or self._turn >= len(draft.turns) or request.stop_strings:
            return None
        turn = draft.turns[self._turn]
        same = request.prompt == draft.token_ids[: turn.start + begun]
        if not same and (self._turn == 0 or self.reusing.reuse != "execute"):
            return None
        if self.reusing.residual and len(turn.alternatives) != len(turn.token_ids):
            return None
        end = min(len(turn.token_ids), begun + request.max_new_tokens)
        if begun >= end:
            return None
        return DraftedTurn(
            start=turn.start + begun,
            token_ids=turn.token_ids[begun:end],
            logprobs=turn.logprobs[begun:end],
            versions=turn.versions[begun:end],
            entropies=turn.entropies[begun:end],
            alternatives=turn.alternatives[begun:end],
        )

    async def _sample(self, request: GenerateRequest) -> Completion:
        top = max(request.top_logprobs, self._top)
        completion = await self.engine.generate(replace(request, top_logprobs=top))
        self.sampled_tokens += len(completion.token_ids)
        self._remember(request, completion.top_logprobs)
        top_logprobs = tuple(row[: request.top_logprobs] for row in completion.top_logprobs)
        return replace(completion, top_logprobs=top_logprobs if request.top_logprobs else ())

    async def _verify(self, request: GenerateRequest, turn: DraftedTurn) -> Completion:
        scores = await self.engine.score(self._build_score_request(request, turn.token_ids))
        if not scores.logprobs:
            return _NOTHING
        uniforms = self._uniforms(len(turn.token_ids))
        stands = cut(self.reusing.rule, scores.logprobs, turn.logprobs, uniforms)
        if self.reusing.residual:
            stands = min(stands, _count_known(turn))
            self._settles = stands < len(turn.token_ids)
        elif stands < len(turn.token_ids):
            self.draft, stands = None, self._cut_before_call(request, turn, stands)
        self.reused_tokens += stands
        return self._build_completion(request, turn, scores, stands)

    def _cut_before_call(self, request: GenerateRequest, turn: DraftedTurn, stands: int) -> int:
        """Take a cut inside a tool call back to where the call begins: one policy says it whole.

        Not with a residual: to drop tokens for what came after them would bend their distribution.
        """
        prefix = request.prompt[len(request.prompt) - self._begun :]
        whole = find_call_cut(self.chat.parse, (*prefix, *turn.token_ids), len(prefix) + stands)
        return max(0, whole - len(prefix))

    def _build_completion(
        self, request: GenerateRequest, turn: DraftedTurn, scores: Scores, stands: int
    ) -> Completion:
        """Return the tokens that stand, as who they are samples of.

        With a residual they are the current policy's; without one they are still their author's,
        with its log-prob and version, and corrections see that they are old.
        """
        tokens = turn.token_ids[:stands]
        if self.reusing.residual:
            self._remember(request, scores.top_logprobs[:stands])
        has_residual = self.reusing.residual
        return Completion(
            token_ids=tokens,
            logprobs=(scores if has_residual else turn).logprobs[:stands],
            versions=(scores.version,) * stands if has_residual else turn.versions[:stands],
            entropies=(scores if has_residual else turn).entropies[:stands]
            if request.entropies
            else (),
            finish=_finish(request, tokens),
        )

    async def _settle(self, request: GenerateRequest, turn: DraftedTurn) -> Completion:
        drafted = turn.token_ids[0]
        score_request = replace(self._build_score_request(request, (drafted,)), distribution=True)
        scores = await self.engine.score(score_request)
        if not scores.logprobs:
            return _NOTHING
        judged = settlement(self.reusing.rule, drafted, turn.alternatives[0], scores.distribution)
        (u,) = self._uniforms(1)
        token = judged.draw(u, _uniform(derive(self.seed, "residual", self._turn, self._begun)))
        self._settles = False
        if token == drafted:
            self.reused_tokens += 1
        else:
            self.draft = None
            self.sampled_tokens += 1
        self._remember(request, scores.top_logprobs)
        return Completion(
            token_ids=(token,),
            logprobs=(scores.distribution[token],),
            versions=(scores.version,),
            entropies=scores.entropies,
            finish=_finish(request, (token,)),
        )

    def _build_score_request(
        self, request: GenerateRequest, tokens: tuple[int, ...]
    ) -> ScoreRequest:
        return ScoreRequest(
            id=request.id,
            prompt=request.prompt,
            token_ids=tokens,
            sampling=request.sampling,
            top_logprobs=self._top,
            entropies=request.entropies and self.reusing.residual,
        )

    @property
    def _top(self) -> int:
        return self.reusing.alternatives if self.reusing.residual else 0

    def _uniforms(self, count: int) -> list[float]:
        """Return one number within (0, 1] per next token of the turn, the same when asked again."""
        places = range(self._begun, self._begun + count)
        return [_uniform(derive(self.seed, "draft", self._turn, at)) for at in places]

    def _remember(self, request: GenerateRequest, top: Sequence[Alternatives]) -> None:
        if self.reusing.residual:
            self.known |= dict(enumerate(top, len(request.prompt)))


def _count_known(turn: DraftedTurn) -> int:
    for at, (token, alternatives) in enumerate(zip(turn.token_ids, turn.alternatives, strict=True)):
        if all(token != other for other, _ in alternatives):
            return at
    return len(turn.token_ids)


def _finish(request: GenerateRequest, tokens: Sequence[int]) -> FinishReason:
    if tokens and tokens[-1] in request.stop_token_ids:
        return "stop"
    return "length" if len(tokens) == request.max_new_tokens else "aborted"


def _uniform(seed: int) -> float:
    return 1.0 - Random(seed).random()
