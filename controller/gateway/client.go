package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"remuda/controller/gateway/openai"
)

// Response headers that say what became of the request.
const (
	headerReplica  = "X-Remuda-Replica"  // the replica that answered
	headerAttempts = "X-Remuda-Attempts" // how many engines the request was sent to
)

// client is the answer as the client gets it.
type client struct {
	w http.ResponseWriter
	// status is what the client got; 0 until then.
	status int
	// sent is how many bytes of a body it got.
	sent int64
	// told is when the client last got a comment with its place in the queue. held: comments have begun
	// the stream.
	told time.Time
	held bool
	// committed: a part of an engine's answer was sent.
	committed bool
}

// begin sends the header.
func (c *client) begin(status int) {
	c.status = status
	c.w.WriteHeader(status)
}

// write sends a part of the body. The error is that the client is gone.
func (c *client) write(p []byte) *apiError {
	n, err := c.w.Write(p)
	c.sent += int64(n)
	if err != nil {
		return errClientGone()
	}
	return nil
}

// event sends a part of a stream at once.
func (c *client) event(p []byte) *apiError {
	if e := c.write(p); e != nil {
		return e
	}
	if err := http.NewResponseController(c.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errClientGone()
	}
	return nil
}

// hold begins the stream with the comments for a client that waits.
func (c *client) hold() {
	if c.held || c.committed {
		return
	}
	c.held = true
	h := c.w.Header()
	h["Content-Type"] = []string{contentSSE}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"} // for an nginx in front
	h[headerVia] = []string{viaRemuda}
	c.begin(http.StatusOK)
}

// fail ends the answer with an error, in the form that the route's clients read, and tells whether
// the connection has to be cut, so that nobody takes what was sent for a whole answer. sent are the
// events that the client got: of a stream with an error event of the engine's nothing else is said.
func (c *client) fail(e *apiError, q *request, sent *openai.Events) (cut bool) {
	switch {
	case e.status == statusClientGone:
		c.status = statusClientGone
		return true
	case c.committed && !c.streaming():
		return true
	case c.committed && sent.Failed:
		if sent.Open && c.event([]byte("\n")) != nil {
			c.status = statusClientGone
		}
		return true
	case c.committed:
		// The blank line ends the event that is open, if one is.
		if gone := c.event(append([]byte("\n\n"), e.event(q.route.api)...)); gone != nil {
			c.status = statusClientGone
		}
		return true
	case c.held:
		// The stream is the gateway's own, so it can end properly.
		c.status = e.status
		return c.event(append(e.event(q.route.api), openai.StreamEnd(q.route.api)...)) != nil
	default:
		c.status = e.status
		e.write(c.w, q.http, q.route.api)
		return false
	}
}

// streaming tells whether the answer that was begun is a stream of events.
func (c *client) streaming() bool {
	kind := c.w.Header()["Content-Type"]
	return c.held || len(kind) > 0 && mediaType(kind[0]) == contentSSE
}

// describe says in headers what became of the request, or in trailers if comments have begun the
// stream.
func (c *client) describe(attempts int64, replica string) {
	h, prefix := c.w.Header(), ""
	if c.held {
		prefix = http.TrailerPrefix
	}
	if attempts > 0 {
		h[prefix+headerAttempts] = []string{strconv.FormatInt(attempts, 10)}
	}
	if replica != "" {
		h[prefix+headerReplica] = []string{replica}
	}
}
