package gateway

import (
	"net/http"
	"strings"
)

// protoOf is the scheme that a client used.
func protoOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// withheldFromEngines are headers of requests that are between the client and the gateway's name:
// cookies are of the site that the gateway is a part of, and Origin has engines answer for other sites.
var withheldFromEngines = map[string]bool{"Cookie": true, "Cookie2": true, "Origin": true}

// withheldFromClients are headers of answers with which an engine would speak for the gateway's name
// in a browser, or of what it is made of.
var withheldFromClients = map[string]bool{
	// What browsers keep for the name, and use for whatever else is served under it.
	"Set-Cookie": true, "Set-Cookie2": true, "Strict-Transport-Security": true, "Public-Key-Pins": true, "Alt-Svc": true,
	"Clear-Site-Data": true, "Nel": true, "Report-To": true, "Reporting-Endpoints": true, "Service-Worker-Allowed": true, "Refresh": true,
	// The software and its version.
	"Server": true, "X-Powered-By": true,
}

// withheldPrefixes are the same for families of headers: which other sites may read answers, and
// what the gateway says of a request.
var withheldPrefixes = [...]string{"Access-Control-", "X-Remuda-", "X-Ratelimit-"}

// copyRequestHeader copies what engines may see of a request's header.
func copyRequestHeader(dst, src http.Header) {
	copyHeader(dst, src)
	for name := range dst {
		if withheldFromEngines[name] || strings.HasPrefix(name, "Access-Control-") {
			delete(dst, name)
		}
	}
}

// copyAnswerHeader copies what clients may see of an answer's header over the gateway's own.
func copyAnswerHeader(dst, src http.Header) {
	engine := make(http.Header, len(src))
	copyHeader(engine, src)
	for name, values := range engine {
		if !withheldFromClient(name) {
			if name == "Vary" {
				values = append(dst[name], values...)
			}
			dst[name] = values
		}
	}
}

func withheldFromClient(name string) bool {
	if withheldFromClients[name] {
		return true
	}
	for _, prefix := range withheldPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
