package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"remuda/controller/gateway/continuation"
	"remuda/controller/gateway/openai"
)

// endGrace is how long an engine may take to end a stream after its last event.
const endGrace = time.Second

// relayStream passes on server-sent events as they come. Only whole lines are
// sent: half a line is of no use to a client, and without it an error event
// can follow at any time. A stream is complete when it has said its end.
func (x *attempt) relayStream(ctx context.Context, resp *http.Response) (verdict, *apiError) {
	pooled := replyBuffers.Get().(*[replyBuffer]byte)
	defer replyBuffers.Put(pooled)
	s := stream{attempt: x, resp: resp, splice: x.client.committed}
	s.events = &x.tokens.events
	s.events.Hide = x.route.asksUsage && !x.wantsUsage
	if x.recorder != nil {
		s.had = x.recorder.Tokens()
	}
	buf, held := pooled[:], 0
	for {
		grace := x.g.cfg.Timeouts.StreamIdle
		if x.route.api == openai.Responses && s.events.Pieces == 0 {
			// The first events say only that the engine has the request.
			grace = max(grace, x.g.of(x.head.Model).firstByte)
		}
		if s.events.Ended {
			grace = min(grace, endGrace)
		}
		n, err := x.read(resp, buf[held:], grace)
		end := held + n
		whole := bytes.LastIndexByte(buf[held:end], '\n') + 1
		var bad error // what makes the rest of the stream useless
		var gone *apiError
		switch {
		case whole > 0:
			whole += held
			gone, bad = s.pass(buf[:whole])
			held, s.midLine = copy(buf, buf[whole:end]), false
		case end == len(buf):
			// A line longer than the buffer cannot be held.
			gone, bad = s.pass(buf)
			held, s.midLine = 0, true
		default:
			held = end
		}
		if gone != nil {
			x.cancel(nil)
			return finished, gone
		}
		if err == nil {
			err = bad
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			// The engine ended properly: what is left is its last line. Behind half a
			// line nothing could go on.
			if held > 0 && x.recorder == nil {
				if gone, bad = s.pass(buf[:held]); gone != nil {
					return finished, gone
				}
			}
			if s.events.Ended {
				return finished, nil
			}
			if x.fresh {
				return x.badContent("ended a stream without an event")
			}
			if err = bad; bad == nil {
				err = errors.New("the stream ended without saying so")
			}
		case s.events.Ended:
			return finished, nil // all that mattered has arrived
		}
		v, e := x.fault(ctx, err)
		if x.client.committed && x.recorder == nil {
			v = finished
		}
		return v, e
	}
}

// stream is an engine's stream of events on its way to the client.
type stream struct {
	*attempt
	resp   *http.Response
	events *openai.Events
	// splice: the client has the beginning of another engine's stream. taken: it goes on with this
	// one.
	splice, taken bool
	// midLine: the line at the start of what comes has been sent in part.
	midLine bool
	// had is how many tokens the client had before.
	had int
}

// pass sends lines, or a part of one that is too long. gone is that the client is gone, bad what makes
// the rest of the stream useless.
func (s *stream) pass(p []byte) (gone *apiError, bad error) {
	x := s.attempt
	if x.recorder != nil {
		if p, bad = sound(p, s.midLine); len(p) == 0 {
			return nil, bad
		}
	}
	if s.splice && !s.taken {
		s.taken = true
		x.grant.Answered()
		x.continued++
		x.g.metrics.continued.WithLabelValues(x.label).Inc()
	}
	switch {
	case x.recorder == nil:
	case s.splice:
		p = x.recorder.Splice(p)
	default:
		x.recorder.Feed(p)
	}
	if x.recorder != nil && !x.dropped && errors.Is(x.recorder.Err(), continuation.ErrMemory) {
		x.dropped, x.payload = true, nil
		x.loan.end()
		x.freeBody()
		x.unrecorded()
	}
	x.progress = x.progress || x.recorder != nil && x.recorder.Tokens() > s.had
	whole, err := s.read(p)
	if bad == nil {
		bad = err
	}
	if s.events.Begun && x.firstToken.IsZero() {
		x.firstToken = time.Now()
	}
	x.learn(s.events.Response)
	if len(whole) == 0 {
		return nil, bad
	}
	if !x.client.committed {
		if s.resp.Header.Get("X-Accel-Buffering") == "" {
			s.resp.Header.Set("X-Accel-Buffering", "no") // for an nginx in front
		}
		x.commit(s.resp, -1)
	}
	x.watch.Stop() // while the client is slow the engine is not to blame
	return x.client.event(whole), bad
}

// read has the events read, but for the parts of a line that is too long to be held.
func (s *stream) read(p []byte) ([]byte, error) {
	from := 0
	if s.midLine {
		from = bytes.IndexByte(p, '\n') + 1
	}
	if from == 0 && s.midLine || bytes.IndexByte(p[from:], '\n') < 0 && len(p) == replyBuffer {
		return p, nil
	}
	whole, err := s.events.Take(p[from:])
	if from == 0 {
		return whole, err
	}
	return append(bytes.Clone(p[:from]), whole...), err
}

// sound returns the beginning of p that a stream can go on behind, as continuation.Check
// does. Of a line that comes in parts nothing can be said: inLine tells that p begins in one,
// and p may be another part, which has no line's end.
func sound(p []byte, inLine bool) ([]byte, error) {
	from := 0
	if inLine {
		from = bytes.IndexByte(p, '\n') + 1
	}
	to := bytes.LastIndexByte(p, '\n') + 1
	if to <= from {
		return p, nil
	}
	n, err := continuation.Check(p[from:to])
	if err != nil {
		p = p[:from+n]
	}
	return p, err
}
