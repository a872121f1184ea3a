package gateway

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// withheldFromEngines are headers of requests that are between the client and the gateway's name:
// cookies are of the site that the gateway is a part of, and Origin has engines answer for other sites.
// Of the client's address and name the gateway itself tells the engine: see setForwarded.
var withheldFromEngines = map[string]bool{"Cookie": true, "Cookie2": true, "Origin": true, "Forwarded": true, "X-Real-Ip": true}

// withheldFromEnginesPrefixes are the same for families of headers.
var withheldFromEnginesPrefixes = [...]string{"Access-Control-", "X-Remuda-", "X-Forwarded-"}

// withheldFromClients are headers of answers with which an engine would speak for the gateway's name
// in a browser, or of what it is made of.
var withheldFromClients = map[string]bool{
	// What browsers keep for the name, and use for whatever else is served under it.
	"Set-Cookie": true, "Set-Cookie2": true, "Strict-Transport-Security": true, "Public-Key-Pins": true, "Alt-Svc": true,
	"Clear-Site-Data": true, "Nel": true, "Report-To": true, "Reporting-Endpoints": true, "Service-Worker-Allowed": true, "Refresh": true,
	// The software and its version.
	"Server": true, "X-Powered-By": true,
}

// withheldFromClientsPrefixes are the same for families of headers: which other sites may read answers, and
// what the gateway says of a request.
var withheldFromClientsPrefixes = [...]string{"Access-Control-", "X-Remuda-", "X-Ratelimit-"}

// copyRequestHeader copies what engines may see of a request's header.
func copyRequestHeader(dst http.Header, r *http.Request) {
	copyHeader(dst, r.Header)
	proxies := dst[forwardedFor]
	for name := range dst {
		if withheldFromEngines[name] || hasAnyPrefix(name, withheldFromEnginesPrefixes[:]) {
			delete(dst, name)
		}
	}
	setForwarded(dst, r, proxies)
}

const forwardedFor = "X-Forwarded-For"

// setForwarded sets what httputil.ProxyRequest.SetXForwarded sets. Behind the addresses that the client or
// a proxy in front has sent comes the one that the gateway saw.
func setForwarded(dst http.Header, r *http.Request, proxies []string) {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		dst[forwardedFor] = []string{strings.Join(append(slices.Clone(proxies), host), ", ")}
	}
	dst["X-Forwarded-Host"] = []string{r.Host}
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	dst["X-Forwarded-Proto"] = []string{proto}
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
	return withheldFromClients[name] || hasAnyPrefix(name, withheldFromClientsPrefixes[:])
}

func hasAnyPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
