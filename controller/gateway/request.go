package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"remuda/controller/gateway/openai"
	"remuda/controller/gateway/queue"
)

// Request headers with which a client says what it wants of the gateway.
const (
	// headerTimeout is how long the client waits for the first byte of the answer.
	headerTimeout = "X-Remuda-Timeout"
	// headerAPIKey is the API key where Authorization has none, as Anthropic's libraries send it.
	headerAPIKey = "X-Api-Key"
	// headerPriority is 0 to 9; higher is sooner.
	headerPriority = "X-Remuda-Priority"
)

// request is what a client asks for. It does not change once it was read.
type request struct {
	http  *http.Request
	route *route
	// id is the gateway's own, so that no client chooses which request an operator ends; clientID is the
	// client's, empty where it has none. A step of a pipeline has the pipeline's ID with its name.
	id, clientID string
	// path is what the engine is asked for, escaped.
	path string
	// began is when its header had come, deadline when the client waits no more for the first byte,
	// zero if it does not say.
	began, deadline time.Time
	// internal: it is a step of a pipeline, not a client's.
	internal bool
	// key is the name of the API key, limit what it may do. ours: it is one of the gateway's, and
	// stays here.
	key   string
	limit queue.KeyLimit
	ours  bool
	// priority is its place in the queue.
	priority int
	// head is of the body as the client sent it, of length bytes. cost and prefix are as of
	// balance.Request.
	head   openai.Head
	length int
	cost   int64
	prefix uint64
	// promptTokens is an estimate of the tokens of the prompt.
	promptTokens int64
	// wantsUsage: the client of a stream asked for the event with the usage.
	wantsUsage bool
	// settings are the model's.
	settings settings
}

// stepKey marks the context of a request that is a step of a pipeline.
type stepKey struct{}

// streams tells whether the client can be told in a stream that it has to wait.
func (q *request) streams() bool {
	return q.head.Stream && q.route.streams && q.http.ProtoAtLeast(1, 1)
}

// readDeadline reads until when the client waits.
func (q *request) readDeadline() *apiError {
	if q.http.Method != q.route.method {
		return errMethod(q.http.Method, q.route.path, q.route.method)
	}
	if v := q.http.Header.Get(headerTimeout); v != "" {
		d, ok := parseTimeout(v)
		if !ok {
			return errHeader(headerTimeout, v, `a time such as "30s" or a number of seconds`)
		}
		q.deadline = q.began.Add(d)
	}
	return nil
}

func errHeader(header, value, want string) *apiError {
	return &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "bad_header", param: header, close: true,
		message: fmt.Sprintf("the header %s is %s: must be %s", header, shorten(value), want)}
}

// readHeader reads whose the request is, and how important.
func (q *request) readHeader(g *Gateway) *apiError {
	var e *apiError
	if q.key, q.ours, e = g.identify(q.http); e != nil {
		return e
	}
	q.limit = g.dispatcher.Limit(q.key)
	q.priority = q.limit.Priority
	if v := q.http.Header.Get(headerPriority); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 9 {
			return errHeader(headerPriority, v, "a whole number from 0 to 9")
		}
		q.priority = min(n, q.limit.MaxPriority)
	}
	for _, enc := range q.http.Header["Content-Encoding"] {
		if enc != "" && !strings.EqualFold(enc, "identity") {
			return &apiError{status: http.StatusUnsupportedMediaType, typ: typeRequest, code: "unsupported_content_encoding", close: true,
				message: fmt.Sprintf("the request body has Content-Encoding %s; send it plain", shorten(enc))}
		}
	}
	return nil
}

// readBody reads what the body says, and asks the engine of a stream for its usage.
func (q *request) readBody(g *Gateway, b *body) *apiError {
	q.length = len(b.data)
	var err error
	if q.route.form {
		q.head, err = openai.ScanForm(q.http.Header.Get("Content-Type"), b.data)
	} else {
		q.head, err = openai.Scan(b.data)
	}
	if err != nil {
		return errBody(err)
	}
	q.settings = g.of(q.head.Model)
	if !q.route.has(q.settings.engines) {
		return errNoSuchRoute(q.route.path, q.head.Model)
	}
	q.prefix = q.head.Prefix(b.data)
	counted := b.data
	if q.route.form { // a recording is no text
		counted = counted[:len(counted)/formBytesPerByte]
	}
	q.promptTokens = q.head.PromptTokens(counted)
	q.cost = q.head.Cost(counted, q.route.generates)
	if q.route.asksUsage && q.head.Stream {
		var edited []byte
		if edited, q.wantsUsage = openai.AskUsage(b.data, q.head); !q.wantsUsage {
			b.replace(edited)
		}
	}
	return nil
}

// formBytesPerByte is how many bytes of a form are about as much work as a byte of text: a second of
// speech has 16 KiB or more, and some three words.
const formBytesPerByte = 1 << 10

// errBody is the error of a body that does not name a model.
func errBody(err error) *apiError {
	e := &apiError{status: http.StatusBadRequest, typ: typeRequest, param: "model"}
	var syntax *openai.SyntaxError
	switch {
	case errors.As(err, &syntax):
		e.code, e.param, e.message = "invalid_json", "", "the request body is not valid JSON: "+syntax.Error()
	case errors.Is(err, openai.ErrModelType):
		e.code, e.message = "invalid_type", `"model" is not a string; set it to a model that GET /v1/models lists`
	case errors.Is(err, openai.ErrModelCase):
		e.code, e.message = "duplicate_parameter", `"model" is written in another case, which engines read in different ways; write it in lower case, once`
	case errors.Is(err, openai.ErrForm):
		e.code, e.param, e.message = "invalid_form", "", err.Error()+`; send multipart/form-data with the fields "model" and "file"`
	default:
		e.code, e.message = "missing_required_parameter", `"model" is missing; set it to a model that GET /v1/models lists`
	}
	return e
}

// parseTimeout reads "30s" or "30".
func parseTimeout(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	if err != nil {
		if d, err = time.ParseDuration(s + "s"); err != nil {
			return 0, false
		}
	}
	return d, d > 0
}
