/** Outbound `fetch` (MW-26). */

import { SafePromise, SafeTypeError } from "./intrinsics.mjs";

/** Refuses every request: the Host's policy lets none out. */
export const closedFetch = {
  fetch(/** @type {unknown} */ _resource, /** @type {unknown} */ _init = undefined) {
    return new SafePromise((_, reject) => reject(new SafeTypeError("egress is closed by the Host's policy")));
  },
}.fetch;
