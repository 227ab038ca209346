/** Where the reader is, in the part of the address after `#`: it works from a file too.
 *
 *     #/overview                               the run, or two runs
 *     #/trajectories?outcome=failed_tool&q=7   a table: groups, trajectories, tasks
 *     #/group/5                                of the second run on the page: 1:5
 *     #/trajectory/33?token=57                 a token; ?turn=2 is a turn
 *     #/compare/32/1:33                        two trajectories
 *     #/task/4/1:9                             a group of each run, with the same task
 */

const IDS = { group: 1, trajectory: 1, compare: 2, task: 2 };
const TABLES = ["groups", "trajectories", "tasks"];

/**
 * Returns `{ view, run, ids, query, lost }`; `ids` are pairs of a run's number and an id, and `lost`
 * is an address that names no place: it leads to the overview, which says so.
 */
export function placeOf(address) {
  const [path, query] = address.replace(/^#?\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  const place = { view: "overview", run: 0, ids: [], query: new URLSearchParams(query), lost: "" };
  if (TABLES.includes(view)) return { ...place, view, run: Number(place.query.get("run") === "1") };
  const ids = rest.map((text) => /^(?:([01]):)?(\d+)$/.exec(text)).map((found) => found && [Number(found[1] ?? 0), Number(found[2])]);
  if (path === "" || path === "overview") return place;
  if (!Object.hasOwn(IDS, view) || IDS[view] !== ids.length || ids.includes(null)) return { ...place, lost: address };
  return { ...place, view, run: ids[0][0], ids };
}

export function addressOf(view, ids = [], query = {}) {
  const path = [view, ...ids.map(([run, id]) => (run ? `${run}:${id}` : id))].join("/");
  const asked = new URLSearchParams(query).toString();
  return `#/${path}${asked && `?${asked}`}`;
}

export function go(address) {
  location.hash = address;
}

/** Changes the address without leaving the view, and without an entry of its own in the history. */
export function note(address) {
  history.replaceState(null, "", address);
}
