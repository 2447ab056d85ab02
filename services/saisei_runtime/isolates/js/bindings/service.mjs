/** `env.NAME` of a service Binding (MW-40): another Worker of the Space, reached as a request to its address would reach it. */

import { ObjectFreeze } from "../intrinsics.mjs";
import { needMuchStack } from "../stack.mjs";

/**
 * @param {import("../environment.mjs").Environment} env
 * @param {string} name the key of `env`
 */
export function serviceBinding(env, name) {
  return ObjectFreeze({
    fetch(/** @type {any} */ resource, /** @type {any} */ init = undefined) {
      needMuchStack();
      return env.egress.through(env, name, resource, init);
    },
  });
}
