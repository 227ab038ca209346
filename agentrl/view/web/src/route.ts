/** Where the reader is, in the part of the address after `#`: it works from a file too. */

import { useEffect, useState } from "preact/hooks";

export type Place =
  | { view: "overview" }
  | { view: "groups" }
  | { view: "trajectories" }
  | { view: "group"; group: number }
  | { view: "trajectory"; trajectory: number }
  | { view: "compare"; one: number; other: number };

export function addressOf(place: Place): string {
  switch (place.view) {
    case "group":
      return `#/group/${place.group}`;
    case "trajectory":
      return `#/trajectory/${place.trajectory}`;
    case "compare":
      return `#/compare/${place.one}/${place.other}`;
    default:
      return `#/${place.view}`;
  }
}

export function placeOf(address: string): Place {
  const [view, first, second] = address.replace(/^#?\/?/, "").split("/");
  const one = Number(first);
  const other = Number(second);
  if (view === "group" && first && Number.isInteger(one)) return { view, group: one };
  if (view === "trajectory" && first && Number.isInteger(one)) return { view, trajectory: one };
  if (view === "compare" && second && Number.isInteger(one) && Number.isInteger(other)) {
    return { view, one, other };
  }
  return view === "groups" || view === "trajectories" ? { view } : { view: "overview" };
}

export function go(place: Place): void {
  location.hash = addressOf(place);
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const moved = () => setPlace(placeOf(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}
