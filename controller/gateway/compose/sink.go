package compose

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"time"

	"remuda/controller/pipeline"
)

// sink is the ResponseWriter of a step's request. Like net/http's it is used by one goroutine
// at a time.
type sink struct {
	header http.Header
	status int
	limit  int
	room   *room
	// events reads the answer where it is a stream; else body has it.
	events   *events
	streamed bool
	body     []byte
	// err is why the answer cannot be used.
	err error
}

var _ http.Flusher = (*sink)(nil)

// Header implements http.ResponseWriter.
func (s *sink) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *sink) WriteHeader(status int) {
	if s.status != 0 || status < 200 {
		return
	}
	s.status = status
	kind, _, _ := mime.ParseMediaType(s.header.Get("Content-Type"))
	s.streamed = status < 300 && kind == contentSSE
}

// Write implements http.ResponseWriter. Its error ends the request, as that of a client that
// has left.
func (s *sink) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	switch {
	case s.err != nil:
	case s.streamed:
		s.err = s.events.feed(p)
	case len(s.body)+len(p) > s.limit:
		s.err = tooLong(s.limit)
	default:
		if s.err = s.room.take(len(p)); s.err == nil {
			s.body = append(s.body, p...)
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

// Flush implements http.Flusher: what was written has gone on already.
func (s *sink) Flush() {}

// FlushError, SetReadDeadline, SetWriteDeadline and EnableFullDuplex are for
// http.ResponseController: there is no connection.
func (s *sink) FlushError() error { return s.err }

// SetReadDeadline does nothing: the body is in memory.
func (s *sink) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing: the pipeline's client has its own.
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// EnableFullDuplex does nothing: reading and writing are apart already.
func (s *sink) EnableFullDuplex() error { return nil }

func tooLong(limit int) error {
	return &failure{status: http.StatusBadGateway, typ: typeServer, code: "step_too_long", message: fmt.Sprintf("the response is longer than %d bytes", limit)}
}

// answer is the whole one. served is what became of serving it.
func (s *sink) answer(served error) (pipeline.Answer, error) {
	switch {
	case s.err != nil:
		return pipeline.Answer{}, s.err
	case s.streamed:
		return s.events.end(served)
	case served != nil:
		return pipeline.Answer{}, badAnswer("%v", served)
	case s.status == 0:
		return pipeline.Answer{}, badAnswer("no response")
	case s.status >= 300:
		return pipeline.Answer{}, stepFailure(s.status, s.header, s.body)
	}
	return whole(s.body)
}

func badAnswer(format string, args ...any) *failure {
	return &failure{status: http.StatusBadGateway, typ: typeServer, code: "step_bad_answer", message: fmt.Sprintf(format, args...)}
}

// usage is OpenAI's.
type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

func usageOf(u pipeline.Usage) usage {
	return usage{Prompt: u.Prompt, Completion: u.Completion, Total: u.Total()}
}

func (u *usage) counts() pipeline.Usage {
	if u == nil {
		return pipeline.Usage{}
	}
	return pipeline.Usage{Prompt: u.Prompt, Completion: u.Completion}
}

// whole reads an answer that is not a stream.
func whole(body []byte) (pipeline.Answer, error) {
	var v struct {
		Choices []struct {
			Message *struct {
				Content *string `json:"content"`
			} `json:"message"`
			Text         *string `json:"text"`
			FinishReason *string `json:"finish_reason"`
		} `json:"choices"`
		Usage *usage          `json:"usage"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return pipeline.Answer{}, badAnswer("invalid response: %v", err)
	}
	if len(v.Error) > 0 && string(v.Error) != "null" {
		f := badAnswer("the response is an error")
		f.take(v.Error)
		return pipeline.Answer{}, f
	}
	if len(v.Choices) == 0 {
		return pipeline.Answer{}, badAnswer("the response has no choice")
	}
	one := v.Choices[0]
	a := pipeline.Answer{Usage: v.Usage.counts(), Body: body}
	switch {
	case one.Message != nil && one.Message.Content != nil:
		a.Text = *one.Message.Content
	case one.Text != nil:
		a.Text = *one.Text
	}
	if one.FinishReason != nil {
		a.FinishReason = *one.FinishReason
	}
	return a, nil
}
