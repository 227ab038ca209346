// Starts an episode on a page of MiniWoB++, whatever went on in it before.
async (seed) => {
  globalThis[Symbol.for("agentrl.clock")]?.reset();
  for (let id = setTimeout(() => {}, 0); id > 0; id -= 1) clearTimeout(id);
  document.activeElement?.blur?.();
  if (window.jQuery) jQuery.fx.off = true;
  // Only a form's reset undoes typing for good: a value that was set shadows a new default.
  const form = document.body.appendChild(document.createElement("form"));
  form.id = "all-fields";
  const fields = document.querySelectorAll("#area input, #area textarea, #area select");
  for (const field of fields) field.setAttribute("form", form.id);
  form.reset();
  for (const field of fields) field.removeAttribute("form");
  form.remove();
  for (const element of document.querySelectorAll("#wrap *")) {
    element.scrollTop = 0;
    delete element.dataset.tampered;
  }
  if (core.cover_div === null) core.startEpisode();
  Math.seedrandom(seed);
  WOB_EPISODE_ID = 0;
  core.EPISODE_MAX_TIME = 2 ** 30;
  if (window.wheelnav) {
    // The first item of a pie takes no click at all: a problem that wants it draws another.
    const draw = createItems;
    createItems = () => {
      const drawn = draw();
      const [first, ...others] = drawn.problemSet;
      if (drawn.expectedItem === first) drawn.expectedItem = core.sample(others);
      return drawn;
    };
  }
  core.startEpisodeReal();
  globalThis[Symbol.for("agentrl.problem")] = true;
  document.getElementById("query").setAttribute("aria-hidden", "true");
  const coming = [...document.images].filter((image) => !image.complete);
  await Promise.all(coming.map((image) => image.decode().catch(() => null)));
  const said = core.getUtterance();
  return said.utterance ?? said;
}
