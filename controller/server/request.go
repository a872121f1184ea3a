package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/state"
)

// request is a request that has found its route.
type request struct {
	*http.Request
	rec   *recorder
	route *route
	query url.Values
	// numbers are the query parameters that are numbers: those that were given or have a
	// preset.
	numbers map[string]uint64
	// index, until and stale are those of a read: until is when a blocking query is over.
	index uint64
	until time.Time
	stale bool
	// admitted: it was authorized, and body or stream is set. held is what body takes of
	// Config.MaxHeld, in bytes.
	admitted bool
	body     []byte
	stream   io.Reader
	held     int64
	// token is the caller's, nil where none is asked for.
	token *state.Token
	// settled: a command of it was committed, or may be. What the request answers from then
	// on needs no further proof that this server leads, and it must not begin anew.
	settled bool
	ctx     context.Context
}

func badRequest(format string, args ...any) *api.Error {
	return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// notFound quotes no more than the beginning of a name: nothing bounds what a client sends.
func notFound(format string, args ...any) *api.Error {
	for i, arg := range args {
		if name, ok := arg.(string); ok {
			args[i] = shorten(name)
		}
	}
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
	rq.numbers = map[string]uint64{}
	for _, p := range rq.route.params {
		text := rq.query.Get(p.name)
		switch {
		case p.number && text != "":
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil || n < p.min || p.max > 0 && n > p.max {
				bad("%s is %q: must be %s", p.name, text, p.bounds())
			}
			rq.numbers[p.name] = n
		case p.preset > 0:
			rq.numbers[p.name] = p.preset
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

// admit authorizes a request by its header alone and then reads its body. This server may
// not know a new token yet: ask is called if it refuses the request. Requests without a
// body, and those that were admitted before, are left alone.
func (s *Server) admit(rq *request, ask func() error) error {
	if rq.route.in == nil || rq.admitted {
		return nil
	}
	_, err := s.authorize(rq.route, rq.Header, s.cfg.Raft.Store().View())
	if err != nil && secret(rq.Header) != "" {
		err = ask()
	}
	if err != nil {
		return err
	}
	rq.admitted = true
	return s.readBody(rq)
}

// readBody reads a JSON body, or bounds a stream. It never reads more than the limit of the
// route, and nothing if the announced length exceeds it.
func (s *Server) readBody(rq *request) error {
	limit := s.cfg.MaxBody
	switch {
	case rq.route.streams():
		limit = s.cfg.MaxSnapshot
	case rq.route.large:
		limit *= largeFactor
	}
	if rq.ContentLength > limit {
		return tooLarge(limit)
	}
	// Only with the writer of net/http does MaxBytesReader let a client that still sends
	// read the response before the connection is closed.
	body := http.MaxBytesReader(rq.rec.ResponseWriter, rq.Body, limit)
	rq.rec.unread = false
	if rq.route.streams() {
		rq.stream = body
		return nil
	}
	control := http.NewResponseController(rq.rec)
	if err := control.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	var err error
	if rq.body, err = io.ReadAll(&heldReader{Reader: body, server: s, rq: rq}); err != nil {
		var long *http.MaxBytesError
		if errors.As(err, &long) {
			return tooLarge(limit)
		}
		rq.rec.unread = true
		var full *api.Error
		if errors.As(err, &full) {
			return full
		}
		return badRequest("read the body: %v", err)
	}
	// From here on the connection is only watched for its end.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// heldReader counts what a request's body takes of Config.MaxHeld as the bytes arrive.
type heldReader struct {
	io.Reader
	server *Server
	rq     *request
}

func (r *heldReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if limit := r.server.cfg.MaxHeld; n > 0 && r.server.held.Add(int64(n)) > limit {
		r.server.held.Add(-int64(n))
		return n, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeBusy, RetryAfter: retryLeader,
			Message: fmt.Sprintf("the server holds %d bytes of request bodies, its limit: retry in a moment", limit)}
	}
	r.rq.held += int64(n)
	return n, err
}

// decode reads the JSON body into v: one object that has the required fields of v and no
// unknown ones. Its error names every field that is wrong.
func (rq *request) decode(v any) error {
	if err := decodeObject(rq.body, v); err != nil {
		return badRequest("body of %s %s: %v", rq.route.method, rq.route.pattern, err)
	}
	return nil
}

func decodeObject(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return errors.New("it is empty, and must be a JSON object")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(body, &given); err != nil {
		return jsonError(err)
	}
	if given == nil {
		return errors.New("is a JSON null: must be an object")
	}
	// encoding/json ignores case, and so does this.
	known, required := map[string]reflect.StructField{}, map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		name, must := jsonField(f)
		if name == "" {
			continue
		}
		known[strings.ToLower(name)] = f
		if must {
			required[strings.ToLower(name)] = name
		}
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		raw, key := given[name], strings.ToLower(name)
		f, ok := known[key]
		if !ok {
			wrong = append(wrong, "unknown field "+clip(name))
			continue
		}
		delete(required, key)
		if string(raw) == "null" { // a number that was left out is not 0
			wrong = append(wrong, fmt.Sprintf("field %q is null: set a value or leave it out", name))
			continue
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(reflect.ValueOf(v).Elem().FieldByIndex(f.Index).Addr().Interface()); err != nil {
			wrong = append(wrong, fmt.Sprintf("field %q: %v", name, jsonError(err)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(required)) {
		wrong = append(wrong, fmt.Sprintf("field %q is missing", required[key]))
	}
	if wrong != nil {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// shorten keeps the beginning of a text from a client.
func shorten(s string) string {
	const longest = 1000
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "…"
}

// jsonError says what encoding/json found in words of JSON.
func jsonError(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return errors.New(shorten(strings.TrimPrefix(err.Error(), "json: ")))
	}
	at := ""
	if wrong.Field != "" {
		at = wrong.Field + " "
	}
	return fmt.Errorf("%sis a JSON %s: must be %s", at, shorten(wrong.Value), kindOf(wrong.Type))
}

// kindOf is what JSON a Go type is read from.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of at least 0"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// jsonField is the name of a field of a type of package api in JSON, empty for none, and
// whether a body must have it.
func jsonField(f reflect.StructField) (name string, required bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" || f.Anonymous { // of an embedded struct the fields count
		return "", false
	}
	return cmp.Or(name, f.Name), !strings.HasPrefix(options, "omit") && f.Type.Kind() != reflect.Pointer
}

// cas returns the parameter of a compare-and-set; nil: any.
func (rq *request) cas() *uint64 {
	if n, ok := rq.numbers["cas"]; ok {
		return &n
	}
	return nil
}
