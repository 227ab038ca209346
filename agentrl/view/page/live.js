/** How a served run stands: its pace, where its time goes, and who holds it up. */

import { servedLive } from "./data.js";
import { definitions, fill, h } from "./dom.js";
import { count, number, seconds, visible, whole } from "./format.js";
import { addressOf } from "./route.js";

const LOOK_MS = 2000;

/** Makes a section that is read again until it has left the page. */
export function makeLive(run) {
  const section = h("section", { class: "standing", "aria-label": "How the run stands", hidden: true });
  let isOpen = null;
  const look = async () => {
    try {
      const live = await servedLive(run.number);
      isOpen = section.querySelector("details")?.open ?? null;
      // Whoever reads or follows a link in the list is left alone until the next look.
      if (!section.matches(":focus-within")) fill(section, liveParts(run, live, isOpen));
      section.hidden = false;
    } catch {
      // The bar says that the server is gone; the last look stays.
    }
    setTimeout(() => section.isConnected && void look(), LOOK_MS);
  };
  void look();
  return section;
}

function liveParts(run, live, isOpen) {
  return [
    definitions("facts", liveFacts(live)),
    h(
      "div",
      { class: "uses" },
      live.learning !== null && use("The loop", [["trains", live.learning], ["waits for groups", 1 - live.learning]]),
      live.shares && use("Trajectories", [["policy", live.shares.policy], ["environment", live.shares.world], ["waiting and the rest", live.shares.other]]),
    ),
    live.slowest.length > 0 && slowest(run, live, isOpen),
    // The overview lists those of the files that it shows.
    faultNotice(live.faults.filter((line) => !run.index.run.faults.includes(line))),
  ];
}

/** Lists the invalid values in a run's files. */
export function faultNotice(faults, of = "") {
  return faults.length > 0 && h("div", { class: "notice faults", role: "note" }, `Invalid values in files${of}:`, h("ul", {}, faults.map((line) => h("li", {}, visible(line)))));
}

function liveFacts(live) {
  const facts = [];
  const fact = (name, value, note = "", isBad = false) => facts.push([name, h("span", { class: isBad && "bad" }, value, note && h("small", {}, ` ${note}`))]);
  const of = live.steps === null ? "" : ` of ${whole(live.steps)}`;
  fact("Run", `${live.phase}, step ${whole(live.step)}${of}`, live.leftS ? `about ${seconds(live.leftS)} to go` : "");
  if (live.reward) {
    const { low, high, groups, step, mean } = live.reward;
    const between = low === null ? "" : `${number(low, 2)} to ${number(high, 2)}, `;
    fact("Reward", number(mean), `${between}${count(groups, "group")}, step ${step}`);
  }
  if (live.stepS !== null) {
    fact("Pace", `${seconds(live.stepS)} a step`, live.tokensPerS === null ? "" : `${whole(Math.round(live.tokensPerS))} trained tokens a second`);
  }
  if (live.age) {
    const most = live.age.max === null ? "" : `at most ${whole(live.age.max)}`;
    fact("Staleness", `${number(live.age.mean, 2)} ${live.age.mean === 1 ? "version" : "versions"}`, most);
  }
  const failures = Object.entries(live.failures);
  const failed = failures.reduce((sum, [, times]) => sum + times, 0);
  const kinds = failures.map(([kind, times]) => `${whole(times)} ${kind}`).join(", ");
  fact("Failures", failed === 0 ? "none" : `${whole(failed)} of ${whole(live.ended)}`, kinds, failed > 0);
  return facts;
}

/** Shares of a whole, as one bar with its parts named below. */
function use(name, parts) {
  const percent = (share) => `${Math.round(share * 100)} %`;
  return h(
    "figure",
    { class: "use" },
    h("figcaption", {}, name),
    h(
      "div",
      { class: "bar-of", role: "img", "aria-label": `${name}: ${parts.map(([what, share]) => `${what} ${percent(share)}`).join(", ")}` },
      parts.map(([, share], place) => h("span", { class: `part-${place}`, style: { width: `${Math.max(0, share) * 100}%` } })),
    ),
    h("ul", {}, parts.map(([what, share], place) => h("li", {}, h("i", { class: `part-${place}` }), ` ${what} `, h("b", {}, percent(share))))),
  );
}

function slowest(run, live, isOpen) {
  const more = live.flying - live.slowest.length;
  const heads = [["Group"], ["Task"], ["Turns", "right"], ["Used", "right"], ["Quiet", "right"]];
  return h(
    "details",
    { open: isOpen ?? (live.stuck > 0 || live.phase === "running") },
    h(
      "summary",
      {},
      `${count(live.flying, "trajectory", "trajectories")} ${live.phase === "running" ? "under way" : "left open"}`,
      live.stuck > 0 && h("span", { class: "bad" }, ` ${whole(live.stuck)} stuck`),
      h("span", { class: "muted" }, `those that have not moved for longest first${more > 0 ? `, ${whole(more)} more` : ""}`),
    ),
    h(
      "div",
      { class: "slowest-box", tabindex: 0, role: "group", "aria-label": "Slowest trajectories" },
      h(
        "table",
        { class: "slowest" },
        h("thead", {}, h("tr", {}, heads.map(([name, side]) => h("th", { scope: "col", class: side }, name)))),
        h(
          "tbody",
          {},
          live.slowest.map((one) =>
            h(
              "tr",
              {},
              h("td", {}, h("a", { href: addressOf("group", [[run.number, one.group]]) }, `${one.group}, no. ${one.sample}`)),
              h("td", { class: "clip" }, visible(one.task)),
              h("td", { class: "right" }, whole(one.turns)),
              h("td", { class: "right" }, seconds(one.usedS)),
              h("td", { class: one.isStuck ? "right bad" : "right" }, one.quietS !== null && seconds(one.quietS), one.isStuck && " stuck"),
            ),
          ),
        ),
      ),
    ),
  );
}
