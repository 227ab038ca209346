// Starts an episode on a page of MiniWoB++, whatever went on in it before.
(seed) => {
  for (let id = setTimeout(() => {}, 0); id > 0; id -= 1) clearTimeout(id);
  document.activeElement?.blur?.();
  if (window.jQuery) jQuery.fx.off = true;
  for (const field of document.querySelectorAll("#area input, #area textarea, #area select")) {
    if (field.type === "checkbox" || field.type === "radio") field.checked = field.defaultChecked;
    else if (field.tagName === "SELECT") field.selectedIndex = -1;
    else field.value = field.defaultValue;
  }
  for (const element of document.querySelectorAll("#area *")) element.scrollTop = 0;
  if (core.cover_div === null) core.startEpisode();
  Math.seedrandom(seed);
  WOB_EPISODE_ID = 0;
  core.EPISODE_MAX_TIME = 2 ** 30;
  core.startEpisodeReal();
  document.getElementById("query").setAttribute("aria-hidden", "true");
  const said = core.getUtterance();
  return said.utterance ?? said;
}
