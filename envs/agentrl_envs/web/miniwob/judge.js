// Tells the verdict of the page that the episode began on; null on any other, which is not asked.
() =>
  globalThis[Symbol.for("agentrl.problem")] !== true
    ? null
    : { done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON }
