package gateway

import "net/http"

// protoOf is the scheme that a client used.
func protoOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}
