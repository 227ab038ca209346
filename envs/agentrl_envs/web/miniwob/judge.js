() =>
  typeof WOB_DONE_GLOBAL === "undefined"
    ? null
    : { done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON }
