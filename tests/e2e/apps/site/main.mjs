export default {
  fetch(request) {
    const { pathname } = new URL(request.url);
    const headers = { "x-worker": "yes" };
    if (pathname === "/throws") throw new Error("on purpose");
    if (pathname.startsWith("/gone/") || pathname.endsWith(".css")) {
      return new Response(`no ${pathname}`, { status: 404, headers });
    }
    return new Response(`${request.method} ${pathname}`, { headers });
  },
};
