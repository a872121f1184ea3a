package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// CORS lets scripts of web pages call the gateway.
type CORS struct {
	// Origins are the origins whose pages may, such as "https://chat.example.com", or "*" for all.
	// Empty means none.
	Origins []string `hcl:"origins"`
}

// corsMaxAge is how long browsers remember the answer to a preflight, in seconds: the most that
// Chromium takes.
const corsMaxAge = "7200"

// corsExposed are the headers of answers that scripts may read.
var corsExposed = strings.Join([]string{headerID, headerReplica, headerAttempts, "Retry-After", "X-Should-Retry"}, ", ")

// cors adds what the browser of a permitted origin asks for, and tells whether the request was a
// preflight, which it answers. A preflight has no key.
func (g *Gateway) cors(w http.ResponseWriter, r *http.Request) (answered bool) {
	origins := g.cfg.CORS.Origins
	if len(origins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.Contains(origins, "*") && !slices.Contains(origins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", corsExposed)
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked) // engines have headers of their own
	}
	h.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}
