// Called by the app `front` alone: it has no address of its own.
export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/throw") throw new Error("a secret of the callee");
    if (pathname === "/tone") return new Response(env.TONE);
    if (pathname === "/sum") {
      let sum = 0;
      for await (const chunk of request.body) sum += chunk.length;
      return new Response(`${sum}`);
    }
    return Response.json({ url: request.url, keys: Object.keys(env), headers: Object.fromEntries(request.headers) });
  },
};
