package gateway

import (
	"bytes"
	"net/http"
	"sync/atomic"
)

// framing remembers whether a connection of HTTP/1 has ever carried a line that begins with the name
// of a header that frames bodies. net/http deletes a Content-Length beside chunks, and any
// Transfer-Encoding in HTTP/1.0, before a handler can see it. A line of a body may look the same:
// then a connection is closed that could have been kept, and never the other way round.
type framing struct {
	length, coding atomic.Bool
	// line is the beginning of the line that goes on in the next bytes, in lower case. Only Read
	// uses it, which has one caller at a time.
	line [len(nameCoding)]byte
	n    int // of line; all of it when the rest of the line is of no interest
}

const nameLength, nameCoding = "content-length", "transfer-encoding"

// see looks at the next bytes that a client sent.
func (f *framing) see(p []byte) {
	for len(p) > 0 {
		for f.n < len(f.line) && len(p) > 0 && p[0] != '\n' {
			c := p[0]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			f.line[f.n] = c
			f.n++
			p = p[1:]
			switch string(f.line[:f.n]) {
			case nameLength:
				f.length.Store(true)
			case nameCoding:
				f.coding.Store(true)
			}
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			return
		}
		p, f.n = p[end+1:], 0
	}
}

// ambiguous tells whether a server in front may see another end of the request than this one: chunks
// beside a length, or chunks in HTTP/1.0. What follows it on the connection must not be taken for
// a request (RFC 9112 section 6.1).
func ambiguous(r *http.Request) bool {
	chunked, old := len(r.TransferEncoding) > 0, !r.ProtoAtLeast(1, 1)
	if r.ProtoMajor >= 2 || !chunked && !old {
		return false
	}
	c, ok := r.Context().Value(unaskedKey{}).(*plainConn)
	if !ok {
		return true // what was sent is not known
	}
	return chunked && c.framing.length.Load() || old && c.framing.coding.Load()
}
