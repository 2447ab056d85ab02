/** The Worker's main module: a small HTTP face, and the classes of its workflows. */
import { EffectWorkflow } from "./effects.mjs";
import { ReportWorkflow } from "./report_workflow.mjs";

export { EffectWorkflow, ReportWorkflow };

/** @param {unknown} value @param {number} [status] */
const json = (value, status = 200) =>
  new Response(JSON.stringify(value), { status, headers: { "content-type": "application/json" } });

export default {
  /**
   * GET /?id=… shows how a report is doing; POST /?id=… with params as its body starts one.
   *
   * @param {Request} request
   * @param {{REPORTS: any}} env
   */
  async fetch(request, env) {
    const id = new URL(request.url).searchParams.get("id");
    if (!id) return json({ usage: "GET /?id=ID or POST /?id=ID with {by, group}" });
    try {
      if (request.method === "POST") {
        const instance = await env.REPORTS.create({ id, params: await request.json() });
        return json({ id: instance.id }, 202);
      }
      const instance = await env.REPORTS.get(id);
      return json({ id, ...(await instance.status()) });
    } catch (error) {
      const name = /** @type {Error} */ (error).name;
      return json({ error: name }, name === "unknown_instance" ? 404 : 400);
    }
  },
};
