package gateway

import (
	"errors"
	"time"

	"remuda/controller/gateway/tracing"
)

// call is the span of one attempt, nil-safe as spans are: connect is until there is a
// connection, first byte until the header of the answer, stream until its end.
type call struct {
	span *tracing.Span
	// connected is when there was a connection, zero until then.
	connected time.Time
	began     time.Time
}

// trace begins the span of an attempt.
func (x *attempt) trace(began time.Time) *call {
	if x.span == nil {
		return nil
	}
	c := &call{span: x.span.Client("attempt", began), began: began}
	c.span.Set("remuda.replica", x.engine.Replica)
	c.span.Set("server.address", x.engine.Addr)
	return c
}

// connect notes that there is a connection.
func (c *call) connect() { c.connected = time.Now() }

// answered ends the part before the answer, or what there was of it.
func (c *call) answered(err error) {
	if c == nil {
		return
	}
	now := time.Now()
	if c.connected.IsZero() {
		connect := c.span.Child(tracing.SpanConnect, c.began)
		connect.Fail(err)
		connect.End(now)
		return
	}
	c.span.Child(tracing.SpanConnect, c.began).End(c.connected)
	first := c.span.Child(tracing.SpanFirstByte, c.connected)
	if err != nil {
		first.Fail(err)
	}
	first.End(now)
	c.began = now
}

// end ends the attempt.
func (c *call) end(e *apiError) {
	if c == nil {
		return
	}
	now := time.Now()
	if !c.connected.IsZero() {
		c.span.Child(tracing.SpanStream, c.began).End(now)
	}
	if e != nil {
		c.span.Fail(e)
	}
	c.span.End(now)
}

// endTrace ends the span of the request.
func (x *exchange) endTrace(now time.Time) {
	if x.span == nil {
		return
	}
	x.span.Set("gen_ai.request.model", x.head.Model)
	x.span.Set("http.response.status_code", x.client.status)
	x.span.Set("remuda.request.id", x.id)
	if x.clientID != "" {
		x.span.Set("remuda.request.client_id", x.clientID)
	}
	x.span.Set("remuda.attempts", x.attempts)
	x.span.Set("remuda.continued", x.continued)
	if x.code != "" {
		x.span.Fail(errors.New(x.code))
	}
	x.span.End(now)
}
