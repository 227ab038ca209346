"""`check_engine`: a policy engine's promises, proven on yours."""

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import CheckError, EngineError
from agentrl.policy import (
    Completion,
    GenerateRequest,
    PolicyEngine,
    Sampling,
    ScoreRequest,
    Scores,
    ScoringEngine,
)
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.testing.promises import PromiseCheck

__all__ = ["ScriptedEngine", "check_engine"]

T = TypeVar("T")

LOGPROB_TOLERANCE = 1e-3
"""Nats by which two runs of one request may differ: engines that batch on a GPU are not exact."""


async def check_engine(
    engine: PolicyEngine,
    *,
    vocab_size: int,
    context_tokens: int | None = None,
    weights: Any = None,
    prompt_tokens: int = 12,
    new_tokens: int = 16,
    timeout_s: float = 60.0,
    is_server: bool = False,
) -> tuple[str, ...]:
    """Prove an engine's promises and return them.

    An engine that plays a script must have at least `new_tokens` to say. The engine is closed at
    the end.

    Args:
        engine: The engine. One that scores is asked for scores too.
        vocab_size: Number of tokens; prompts are made of ids below it.
        context_tokens: Length of the context in tokens. A prompt that fills it must be refused;
            None does not try.
        weights: Weights that the engine must load, as version + 1 and while it samples; None does
            not try.
        prompt_tokens: Length of the prompts.
        new_tokens: Length of the completions.
        timeout_s: Deadline of every call.
        is_server: Whether it asks somebody else's server. Then it is let off two promises that it
            cannot keep: a request that goes on draws noise of its own, and scores are log-probs
            alone.

    Returns:
        The promises that were proven, in words, such as `abort returns what there is`.

    Raises:
        CheckError: A promise is broken; the text begins with it.
    """
    check = _Check(
        engine=engine,
        vocab_size=vocab_size,
        context_tokens=context_tokens,
        weights=weights,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        timeout_s=timeout_s,
        is_server=is_server,
    )
    try:
        await check.run()
    finally:
        await check.await_call("close", engine.close())
    return tuple(check.proven)


@dataclass(slots=True, kw_only=True)
class _Check(PromiseCheck):
    engine: PolicyEngine
    vocab_size: int
    context_tokens: int | None
    weights: Any
    prompt_tokens: int
    new_tokens: int
    timeout_s: float
    is_server: bool
    made: int = 0

    async def run(self) -> None:
        whole = isinstance(self.engine, PolicyEngine)  # pyright: ignore[reportUnnecessaryIsInstance]
        self.expect(whole, "the engine is an agentrl.PolicyEngine", type(self.engine).__name__)
        before = ProcessHoldings.take()
        await self.check_completion()
        await self.check_same_tokens()
        await self.check_top_logprobs()
        await self.check_greedy()
        await self.check_stop_token()
        await self.check_abort()
        await self.check_cancellation()
        await self.check_overflow()
        await self.check_scores()
        await self.check_pause()
        await self.check_load()
        await self.check_close()
        await check_no_leak(before)
        self.note("nothing is left after close")

    async def check_completion(self) -> None:
        completion = await self.ask(self.request())
        self.check_form(completion, "a completion")
        self.expect(
            completion.finish == "length" and len(completion.token_ids) == self.new_tokens,
            "the budget is used and kept",
            f"{len(completion.token_ids)} tokens with finish {completion.finish!r} for "
            f"max_new_tokens={self.new_tokens} and nothing to stop on",
        )

    async def check_same_tokens(self) -> None:
        request = self.request(seed=3)
        first = await self.ask(request)
        self.expect_same(first, await self.ask(self.renew(request)), "asked twice")
        others = [
            self.request(seed=10 + i, max_new_tokens=1 + (5 * i) % self.new_tokens)
            for i in range(8)
        ]
        requests = [*others, self.renew(request)]
        among = await self.await_call(
            "generate", asyncio.gather(*map(self.engine.generate, requests))
        )
        self.expect_same(first, among[-1], "asked among others")
        for other, completion in zip(others, among, strict=False):
            self.check_form(completion, "a completion among others")
            self.expect(
                len(completion.token_ids) == other.max_new_tokens,
                "every request keeps its own budget",
                f"{len(completion.token_ids)} tokens for max_new_tokens={other.max_new_tokens}",
            )

    async def check_top_logprobs(self) -> None:
        completion = await self.ask(self.request(seed=4, top_logprobs=3))
        self.check_form(completion, "a completion with top_logprobs=3")
        self.expect(
            len(completion.top_logprobs) == len(completion.token_ids),
            "alternatives come with every token",
            f"{len(completion.top_logprobs)} lists for {len(completion.token_ids)} tokens",
        )
        for token, logprob, top in zip(
            completion.token_ids, completion.logprobs, completion.top_logprobs, strict=True
        ):
            values = [value for _, value in top]
            self.expect(
                1 <= len(top) <= 3 and values == sorted(values, reverse=True),
                "alternatives are the asked number, most likely first",
                f"top_logprobs=3 gave {top}",
            )
            listed = dict(top).get(token, logprob)
            self.expect(
                math.isclose(listed, logprob, abs_tol=LOGPROB_TOLERANCE)
                and (token in dict(top) or len(top) < 3 or logprob <= values[-1]),
                "alternatives are of the distribution that was sampled",
                f"token {token} was sampled with {logprob}, among alternatives {top}",
            )

    async def check_greedy(self) -> None:
        request = self.request(seed=5, sampling=Sampling(temperature=0.0))
        reply = await self.ask(request)
        other = await self.ask(replace(self.renew(request), seed=6))
        self.expect(
            reply.token_ids == other.token_ids and set(reply.logprobs) == {0.0},
            "temperature 0 is a point: no noise, log-prob 0",
            f"log-probs {reply.logprobs[:4]}, equal tokens: {reply.token_ids == other.token_ids}",
        )

    async def check_stop_token(self) -> None:
        request = self.request(seed=7)
        full = await self.ask(request)
        stop = full.token_ids[len(full.token_ids) // 2]
        until = full.token_ids.index(stop) + 1
        completion = await self.ask(replace(self.renew(request), stop_token_ids=frozenset({stop})))
        self.expect(
            completion.finish == "stop" and completion.token_ids == full.token_ids[:until],
            "a stop token ends the completion and is part of it",
            f"stop token {stop} gave {completion.token_ids} with finish {completion.finish!r}",
        )

    async def check_abort(self) -> None:
        request = self.request(seed=8)
        full = await self.ask(request)
        for steps in (0, 3, 7):
            part = await self.start_and_abort(self.renew(request), steps)
            self.check_form(part, "an aborted completion")
            got = len(part.token_ids)
            self.expect(
                part.token_ids == full.token_ids[:got],
                "abort returns what there is",
                f"{part.token_ids} is not the beginning of {full.token_ids}",
            )
            if part.finish != "aborted" or got == self.new_tokens:
                continue  # it was faster than us, which is no fault
            rest = await self.ask(
                replace(
                    self.renew(request),
                    prompt=request.prompt + part.token_ids,
                    max_new_tokens=self.new_tokens - got,
                )
            )
            self.check_form(rest, "a completion that goes on")
            if self.is_server:
                continue
            self.expect(
                part.token_ids + rest.token_ids == full.token_ids,
                "an aborted request, continued, is the one that was never interrupted",
                f"{part.token_ids} + {rest.token_ids} is not {full.token_ids}",
            )
        await self.await_call("abort", self.engine.abort("nobody"))
        self.note("aborting what is not in flight does nothing")

    async def check_cancellation(self) -> None:
        request = self.request(seed=9)
        task = asyncio.create_task(self.engine.generate(request))
        await _turn_loop(3)
        task.cancel()
        await asyncio.wait([task], timeout=self.timeout_s)
        self.expect(task.done(), "a cancelled caller is let go", "generate() ignored cancellation")
        # The id is free again at once, which it is not while the request is in flight.
        completion = await self.ask(request)
        self.check_form(completion, "a completion after a cancellation")
        self.note("cancelling the caller frees the request")

    async def check_overflow(self) -> None:
        if self.context_tokens is None:
            return
        request = replace(self.request(), prompt=(1,) * self.context_tokens)
        try:
            await self.ask(request)
        except ValueError as error:
            self.expect(
                str(self.context_tokens) in str(error),
                "a prompt that leaves no room is refused, with the numbers",
                f"the error is {error}",
            )
            return
        raise CheckError(
            f"a prompt that leaves no room is refused: {self.context_tokens} tokens were taken"
        )

    async def check_scores(self) -> None:
        engine = self.engine
        if not isinstance(engine, ScoringEngine):
            return
        request = self.request(seed=17)
        completion = await self.ask(request)
        score_request = ScoreRequest(
            id="check-score",
            prompt=request.prompt,
            token_ids=completion.token_ids,
            top_logprobs=2,
            entropies=not self.is_server,
            distribution=not self.is_server,
        )
        scores = await self.await_call("score", engine.score(score_request))
        count = len(completion.token_ids)
        lengths = (len(scores.logprobs), len(scores.top_logprobs), len(scores.entropies))
        entropies = 0 if self.is_server else count
        self.expect(
            lengths == (count, count, entropies) and scores.version == engine.version,
            "every token is scored, by the version that is loaded",
            f"{lengths} log-probs, alternatives and entropies for {count} tokens, version "
            f"{scores.version} and the engine's {engine.version}",
        )
        gap = max(abs(a - b) for a, b in zip(scores.logprobs, completion.logprobs, strict=True))
        self.expect(
            gap <= LOGPROB_TOLERANCE,
            "what was sampled is scored as it was sampled",
            f"log-probs differ by {gap} nats",
        )
        if not self.is_server:
            self.check_distribution(scores, completion.token_ids[-1])

    def check_distribution(self, scores: Scores, last: int) -> None:
        total = sum(math.exp(x) for x in scores.distribution)
        here = scores.distribution[last] if scores.distribution else math.nan
        self.expect(
            math.isclose(total, 1, abs_tol=1e-3)
            and math.isclose(here, scores.logprobs[-1], abs_tol=LOGPROB_TOLERANCE),
            "the distribution at the last token is whole, and the one it is scored under",
            f"it sums to {total} and gives that token {here}, scored {scores.logprobs[-1]}",
        )

    async def check_pause(self) -> None:
        running = asyncio.create_task(self.engine.generate(self.request(seed=11)))
        await _turn_loop(2)
        await self.await_call("pause", self.engine.pause())
        await self.await_call("generate", asyncio.wait_for(running, self.timeout_s))
        task = asyncio.create_task(self.engine.generate(self.request(seed=12)))
        await asyncio.sleep(0.05)
        self.expect(
            not task.done(),
            "pause ends what is in flight and holds new requests back",
            "a request was served while paused",
        )
        await self.await_call("resume", self.engine.resume())
        self.check_form(await self.await_call("generate", task), "a completion after a pause")
        self.note("resume takes requests again")

    async def check_load(self) -> None:
        if self.weights is None:
            return
        before = self.engine.version
        running = asyncio.create_task(self.engine.generate(self.request(seed=13)))
        await _turn_loop(4)
        await self.await_call("load", self.engine.load(self.weights, before + 1))
        self.expect(
            self.engine.version == before + 1,
            "load changes the version",
            f"version is {self.engine.version} after load(..., {before + 1})",
        )
        mixed = await self.await_call("generate", running)
        self.expect(
            list(mixed.versions) == sorted(mixed.versions)
            and set(mixed.versions) <= {before, before + 1},
            "tokens carry the version that sampled them",
            f"versions {mixed.versions} around a load of version {before + 1}",
        )
        self.check_form(await self.ask(self.request(seed=14)), "a completion after a load")

    async def check_close(self) -> None:
        running = asyncio.create_task(self.engine.generate(self.request(seed=15)))
        await _turn_loop(2)
        await self.await_call("close", self.engine.close())
        completion = await self.await_call("generate", running)
        self.expect(
            completion.finish == "aborted" or len(completion.token_ids) == self.new_tokens,
            "close ends requests as aborted",
            f"finish is {completion.finish!r} after close",
        )
        await self.await_call("close", self.engine.close())
        self.note("close may be called twice")
        try:
            await self.ask(self.request(seed=16))
        except EngineError:
            self.note("a closed engine refuses requests")
            return
        raise CheckError("a closed engine refuses requests: it served one")

    def check_form(self, done: Completion, what: str) -> None:
        """Expect what holds of every completion without a load in between."""
        self.expect(
            all(0 <= token < self.vocab_size for token in done.token_ids),
            "tokens are of the vocabulary",
            f"{what} has tokens {done.token_ids}",
        )
        self.expect(
            all(math.isfinite(x) and x <= 0 for x in done.logprobs),
            "log-probs are finite and at most 0",
            f"{what} has log-probs {done.logprobs}",
        )
        self.expect(
            set(done.versions) <= {self.engine.version},
            "tokens carry the engine's version",
            f"{what} has versions {done.versions}, the engine {self.engine.version}",
        )

    def expect_same(self, one: Completion, other: Completion, when: str) -> None:
        self.expect(
            one.token_ids == other.token_ids,
            f"same request, same tokens: {when}",
            f"{one.token_ids} and {other.token_ids}",
        )
        pairs = zip(one.logprobs, other.logprobs, strict=True)
        worst = max((abs(a - b) for a, b in pairs), default=0.0)
        self.expect(
            worst <= LOGPROB_TOLERANCE,
            f"same request, same log-probs: {when}",
            f"they differ by {worst} nats",
        )

    def request(self, seed: int = 0, **changes: Any) -> GenerateRequest:
        """Return a new request; its prompt follows from the seed."""
        self.made += 1
        step = 7 + 2 * seed
        prompt = tuple((seed + step * i) % self.vocab_size for i in range(self.prompt_tokens))
        changes.setdefault("max_new_tokens", self.new_tokens)
        return GenerateRequest(id=f"check-{self.made}", prompt=prompt, seed=seed, **changes)

    def renew(self, request: GenerateRequest) -> GenerateRequest:
        self.made += 1
        return replace(request, id=f"check-{self.made}")

    async def ask(self, request: GenerateRequest) -> Completion:
        return await self.await_call("generate", self.engine.generate(request))

    async def start_and_abort(self, request: GenerateRequest, steps: int) -> Completion:
        task = asyncio.create_task(self.engine.generate(request))
        await _turn_loop(1 + steps)
        await self.await_call("abort", self.engine.abort(request.id))
        return await self.await_call("generate", task)

    async def await_call(self, call: str, work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
        try:
            return await asyncio.wait_for(work, self.timeout_s)
        except TimeoutError as error:
            raise CheckError(
                f"every call ends: {call}() was not done after {self.timeout_s} s"
            ) from error


async def _turn_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
