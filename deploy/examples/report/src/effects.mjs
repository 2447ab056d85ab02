/**
 * Effects that somebody outside can count. Contexts are fresh and share nothing, so each run of a step's effect leaves a
 * durable mark: an instance of EffectWorkflow with the id `INSTANCE.STEP.N`. Ids are unique, so marks never overlap.
 */

export class EffectWorkflow {
  async run() {
    return {};
  }
}

/**
 * Leaves a mark and tells how many runs of this effect, this one included, there have been.
 *
 * @param {{EFFECTS: any}} env
 * @param {string} instanceId
 * @param {string} stepName
 * @returns {Promise<number>} from 1
 */
export async function mark(env, instanceId, stepName) {
  for (let run = 1; ; run += 1) {
    try {
      await env.EFFECTS.create({ id: `${instanceId}.${stepName}.${run}` });
      return run;
    } catch (error) {
      if (/** @type {Error} */ (error).name !== "instance_exists") throw error;
    }
  }
}
