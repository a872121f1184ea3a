package ui

import (
	"bytes"
	"compress/gzip"
	"html/template"
	"io"
	"strconv"
	"strings"
	"sync"
)

// zippers are used again: one has about a megabyte.
var zippers = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid
	return w
}}

// zip compresses a page. Its length tells another site nothing about what is in it: a browser sends the cookie with the token
// (SameSite=Strict) only with requests of this site.
func zip(body template.HTML) []byte {
	w, _ := zippers.Get().(*gzip.Writer)
	defer zippers.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	_, _ = io.WriteString(w, string(body)) // A buffer takes everything.
	_ = w.Close()
	return out.Bytes()
}

// takesGzip reads a header Accept-Encoding.
func takesGzip(accepted string) bool {
	for one := range strings.SplitSeq(accepted, ",") {
		name, params, _ := strings.Cut(one, ";")
		if strings.TrimSpace(name) != "gzip" {
			continue
		}
		weight, ok := strings.CutPrefix(strings.TrimSpace(params), "q=")
		q, err := strconv.ParseFloat(weight, 64)
		return !ok || err == nil && q > 0
	}
	return false
}
