/** Outbound `fetch` (MW-26). */

import { SafePromise, SafeTypeError } from "./intrinsics.mjs";

const CLOSED =
  "outbound fetch is closed: this version of the Host lets no request out, and has no setting that opens it; " +
  "bring data in by params, by events, or by requests to the Worker's fetch handler";

/** Refuses every request: the Host's policy lets none out. */
export const closedFetch = {
  fetch(/** @type {unknown} */ _resource, /** @type {unknown} */ _init = undefined) {
    return new SafePromise((_, reject) => reject(new SafeTypeError(CLOSED)));
  },
}.fetch;
