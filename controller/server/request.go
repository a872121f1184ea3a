package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/state"
)

// request is a request that has found its route.
type request struct {
	*http.Request
	route *route
	// path has the pattern's parameters, query those after the '?'.
	path  map[string]string
	query url.Values
	// index, until and stale are those of a read: until is when a blocking query is over.
	index uint64
	until time.Time
	stale bool
	// body is a JSON body; a stream is read from Request.Body.
	body []byte
	// token is the caller's, nil where none is asked for.
	token *state.Token
	ctx   context.Context
}

func badRequest(format string, args ...any) *api.Error {
	return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) *api.Error {
	return &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: fmt.Sprintf(format, args...)}
}

func conflict(format string, args ...any) *api.Error {
	return &api.Error{Status: http.StatusConflict, Code: api.CodeConflict, Message: fmt.Sprintf(format, args...)}
}

// parseQuery reads the query parameters, and names all that are wrong.
func (rq *request) parseQuery() error {
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	var err error
	if rq.query, err = url.ParseQuery(rq.URL.RawQuery); err != nil {
		return badRequest("query: %v", err)
	}
	for name, values := range rq.query {
		if !rq.route.takes(name) {
			bad("unknown parameter %q of %s %s", name, rq.route.method, rq.route.pattern)
		} else if len(values) > 1 {
			bad("duplicate parameter %q: %d times", name, len(values))
		}
	}
	if text := rq.query.Get(paramIndex); text != "" {
		if rq.index, err = strconv.ParseUint(text, 10, 64); err != nil {
			bad("index is %q: must be a number from the header %s of a response", text, api.HeaderIndex)
		}
	}
	wait := api.DefaultWait
	if text := rq.query.Get(paramWait); text != "" {
		wait, err = time.ParseDuration(text)
		switch {
		case err != nil:
			bad("wait is %q: must be a duration with a unit, such as \"30s\"", text)
		case wait <= 0 || wait > api.MaxWait:
			bad("wait is %s: must be more than 0s and at most %s", text, api.MaxWait)
		}
	}
	switch text := rq.query.Get(paramStale); text {
	case "", "true", "1":
		rq.stale = rq.query.Has(paramStale)
	case "false", "0":
	default:
		bad("stale is %q: must be empty, true or false", text)
	}
	if len(wrong) > 0 {
		return badRequest("%s", strings.Join(wrong, "; "))
	}
	if rq.index > 0 {
		// Not all that began at the same time shall come back at the same time.
		rq.until = time.Now().Add(wait + rand.N(wait/16+1))
	}
	return nil
}

func tooLarge(limit int64) *api.Error {
	return &api.Error{Status: http.StatusRequestEntityTooLarge, Code: api.CodeTooLarge,
		Message: fmt.Sprintf("body is larger than %d bytes, the limit of this route", limit)}
}

// largeFactor makes room for a gateway's report: 64 requests of each of some thousand
// replicas.
const largeFactor = 8

// readBody reads the body of a request that is no stream, never more of it than its
// limit, and of one that says how long it is nothing at all if that is too much.
func (s *Server) readBody(w http.ResponseWriter, rq *request) error {
	limit := s.cfg.MaxBody
	switch {
	case rq.route.body == bodyStream:
		limit = s.cfg.MaxSnapshot
	case rq.route.large:
		limit *= largeFactor
	}
	if rq.ContentLength > limit {
		w.Header().Set("Connection", "close")
		return tooLarge(limit)
	}
	if rq.route.body == bodyStream {
		rq.Body = http.MaxBytesReader(plain(w), rq.Body, limit)
		return nil
	}
	if rq.ContentLength == 0 {
		return nil
	}
	var err error
	if rq.body, err = io.ReadAll(http.MaxBytesReader(plain(w), rq.Body, limit)); err != nil {
		var long *http.MaxBytesError
		if errors.As(err, &long) {
			return tooLarge(limit)
		}
		w.Header().Set("Connection", "close")
		return badRequest("read the body: %v", err)
	}
	if rq.route.body == bodyNone && len(bytes.TrimSpace(rq.body)) > 0 {
		return badRequest("%s %s takes no body", rq.route.method, rq.route.pattern)
	}
	return nil
}

// plain is the writer that net/http made: only with that one does it let a client read
// the answer before it closes the connection on which the client still writes.
func plain(w http.ResponseWriter) http.ResponseWriter {
	if rec, ok := w.(*recorder); ok {
		return rec.ResponseWriter
	}
	return w
}

// decode reads the JSON body into v, which is one object without unknown fields.
func (rq *request) decode(v any) error {
	if len(bytes.TrimSpace(rq.body)) == 0 {
		return badRequest("body is empty: must be a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(rq.body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return rq.jsonError(err, d.InputOffset())
	}
	rest := rq.body[d.InputOffset():]
	if i := len(rest) - len(bytes.TrimLeft(rest, " \t\r\n")); i < len(rest) {
		return badRequest("body is not valid JSON: %s: unexpected data after its end", position(rq.body, d.InputOffset()+int64(i)))
	}
	return nil
}

// jsonError says what is wrong with the body, and where.
func (rq *request) jsonError(err error, at int64) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		// Its offset is behind the byte that is wrong.
		return badRequest("body is not valid JSON: %s: %v", position(rq.body, syntax.Offset-1), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("body is not valid JSON: %s: unexpected end", position(rq.body, int64(len(rq.body))))
	case errors.As(err, &kind):
		field := kind.Field
		if field == "" {
			return badRequest("body is a JSON %s: must be an object", kind.Value)
		}
		return badRequest("%s: field %q is a JSON %s: must be %s", position(rq.body, kind.Offset), field, kind.Value, jsonKind(kind.Type.Kind().String()))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if unquoted, err := strconv.Unquote(name); err == nil {
			// The decoder stops behind the object; the name itself is easily found.
			if i := bytes.Index(rq.body, []byte(strconv.Quote(unquoted))); i >= 0 {
				at = int64(i)
			}
		}
		return badRequest("%s: unknown field %s of %s %s", position(rq.body, at), name, rq.route.method, rq.route.pattern)
	}
	return badRequest("body: %v", err)
}

// jsonKind is how people who write JSON call a kind of Go's.
func jsonKind(k string) string {
	switch {
	case strings.HasPrefix(k, "int"):
		return "a whole number"
	case strings.HasPrefix(k, "uint"):
		return "a whole number of 0 or more"
	}
	switch k {
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	case "map", "struct":
		return "an object"
	case "slice":
		return "a list"
	}
	return k
}

// position is the line and column of a byte, both from 1.
func position(body []byte, at int64) string {
	at = min(max(at, 0), int64(len(body)))
	before := body[:at]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}
