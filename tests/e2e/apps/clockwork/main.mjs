// Its `fetch` tells what its `scheduled` was called with; both share a thread while nothing else goes on.
const seen = [];

export default {
  async scheduled(event, env, ctx) {
    console.log(`ran ${event.cron} at ${new Date(event.scheduledTime).toISOString()}`);
    ctx.waitUntil(Promise.resolve().then(() => seen.push({ ...event, keys: Object.keys(event) })));
    if (event.cron.startsWith("30")) throw new RangeError("only once in four years");
  },
  fetch: () => Response.json(seen),
};
