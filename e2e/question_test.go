//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// question is one request and the answer that the simulated engine must give to it.
type question struct {
	path   string
	body   []byte
	header http.Header
	stream bool
	want   answers.Answer
	// leaveEvents and leaveAfter are when the client goes away: after so many events of
	// the answer, or so long after it asked. 0 is never.
	leaveEvents int
	leaveAfter  time.Duration
}

// ask renders a question. The system message is one that many requests share.
func ask(model, system, prompt string, maxTokens int, chat, stream bool) question {
	q := question{path: "/v1/completions", stream: stream}
	params := text.Params{MaxTokens: maxTokens, IgnoreEOS: true}
	body := map[string]any{"model": model, "max_tokens": maxTokens, "ignore_eos": true, "stream": stream}
	if stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if chat {
		q.path = "/v1/chat/completions"
		messages := []text.Message{{Role: "system", Content: system}, {Role: "user", Content: prompt}}
		var list []map[string]string
		for _, m := range messages {
			list = append(list, map[string]string{"role": m.Role, "content": m.Content})
		}
		body["messages"] = list
		q.want = answers.Generate(model, text.Render(messages, true, false), params)
	} else {
		body["prompt"] = system + prompt
		q.want = answers.Generate(model, system+prompt, params)
	}
	var err error
	if q.body, err = json.Marshal(body); err != nil {
		panic(err)
	}
	return q
}

// ending is how an answer ended.
type ending int

const (
	// whole: it ended as it should, with exactly the text that it should have.
	whole ending = iota
	// unanswered: not one byte of an answer came, but an error or nothing.
	unanswered
	// brokenLoudly: after the first byte the answer ended with an error that says so.
	brokenLoudly
	// brokenSilently: after the first byte the connection ended, or the answer ended as if
	// it were whole.
	brokenSilently
	// wrong: what came is not what the engine says: a token is lost, doubled or made up.
	wrong
	// left: the client went away first, and what it had was right.
	left
)

func (e ending) String() string {
	return [...]string{"whole", "unanswered", "broken loudly", "broken silently", "wrong", "left"}[e]
}

// reply is what a client has seen of an answer.
type reply struct {
	ending ending
	// err says more of one that is not whole.
	err error
	// status and header are of the answer; status is 0 where none came.
	status int
	header http.Header
	// comments are those of the stream, in order, and first is when an event came first.
	comments []string
	first    time.Time
	// cut: the connection failed, the gateway said nothing.
	cut bool
}

// to sends the question to a gateway and reads the answer to its end.
func (q question) to(ctx context.Context, c *http.Client, gateway string) (r reply) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if q.leaveAfter > 0 {
		defer time.AfterFunc(q.leaveAfter, leave).Stop()
	}
	parent := ctx
	a := answering{q: q, leave: leave}
	defer func() {
		// Who has gone away does not see how it would have ended.
		if r.ending != whole && r.ending != wrong && parent.Err() != nil && (q.leaveAfter > 0 || q.leaveEvents > 0) && !errors.Is(parent.Err(), context.DeadlineExceeded) {
			r.ending, r.err = left, nil
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+q.path, bytes.NewReader(q.body))
	if err != nil {
		return reply{ending: unanswered, err: err}
	}
	for name, values := range q.header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return reply{ending: unanswered, err: err, cut: true}
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	switch {
	case resp.StatusCode != http.StatusOK:
		raw, err := io.ReadAll(resp.Body)
		r.ending, r.err = unanswered, statusError{resp.StatusCode, string(raw)}
		if err != nil {
			r.err, r.cut = err, true
		}
	case q.stream:
		r.err = a.read(resp.Body)
		r.comments, r.first = a.comments, a.first
		r.ending, r.cut = a.ending(r.err)
	default:
		raw, err := io.ReadAll(resp.Body)
		if err == nil {
			err = a.unary(raw)
		}
		r.err, r.first = err, time.Now()
		r.ending, r.cut = a.ending(err)
	}
	return r
}

// errToldSo is an error that the stream itself reported.
var errToldSo = errors.New("the stream reports an error")

// errWrong is an answer that no engine gave.
var errWrong = errors.New("the answer is wrong")

// answering is an answer while it is read.
type answering struct {
	q        question
	leave    func()
	said     strings.Builder
	events   int
	first    time.Time
	id       string
	finish   string
	tokens   int // by the usage
	done     bool
	comments []string
}

// ending classifies an answer that was read with err.
func (a *answering) ending(err error) (e ending, cut bool) {
	switch {
	case errors.Is(err, errWrong):
		return wrong, false
	case err == nil:
		return whole, false
	case a.events == 0:
		return unanswered, !errors.Is(err, errToldSo)
	case errors.Is(err, errToldSo):
		return brokenLoudly, false
	default:
		return brokenSilently, true
	}
}

// chunk is an event of a stream, or a whole answer.
type chunk struct {
	ID      string
	Error   json.RawMessage
	Choices []struct {
		Delta, Message struct{ Content string }
		Text           string
		FinishReason   string `json:"finish_reason"`
	}
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	}
}

// wholeLines splits at line ends. bufio.ScanLines takes what there is of a line for a line
// where reading ends in its middle: because the client leaves, or a gateway is killed.
func wholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if advance, line, err = bufio.ScanLines(data, false); advance == 0 && atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return advance, line, err
}

// TestHalfALine: a stream that ends in the middle of a line is cut, and not wrong.
func TestHalfALine(t *testing.T) {
	t.Parallel()
	const stream = "data: {\"id\":\"1\",\"choices\":[]}\n\ndata: {\"id\":\"1\",\"cho"
	for want, body := range map[error]io.Reader{
		io.ErrUnexpectedEOF: strings.NewReader(stream),
		context.Canceled:    io.MultiReader(strings.NewReader(stream), iotest.ErrReader(context.Canceled)),
	} {
		a := answering{}
		err := a.read(body)
		require.ErrorIs(t, err, want)
		require.NotErrorIs(t, err, errWrong)
		require.Equal(t, 1, a.events)
		_, err = readStream(strings.NewReader(stream), func(time.Time) {})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// read reads a stream.
func (a *answering) read(body io.Reader) error {
	sc := bufio.NewScanner(body)
	sc.Split(wholeLines)
	sc.Buffer(make([]byte, 16<<10), 1<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case a.done && line != "":
			return fmt.Errorf("%w: %q follows [DONE]", errWrong, line)
		case line == "":
		case strings.HasPrefix(line, ":"):
			a.comments = append(a.comments, strings.TrimSpace(line[1:]))
		case line == "data: [DONE]":
			a.done = true
		case strings.HasPrefix(line, "data: "):
			if err := a.event([]byte(line[len("data: "):])); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: a line is %q", errWrong, line)
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	if !a.done {
		return errors.New("the stream ended without [DONE]")
	}
	return a.check()
}

func (a *answering) event(raw []byte) error {
	var c chunk
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%w: %w in %q", errWrong, err, raw)
	}
	if c.Error != nil {
		return fmt.Errorf("%w: %s", errToldSo, c.Error)
	}
	if a.events++; a.events == 1 {
		a.first, a.id = time.Now(), c.ID
	}
	if c.ID != a.id {
		return fmt.Errorf("%w: event %d has the ID %q, the first %q", errWrong, a.events, c.ID, a.id)
	}
	a.take(c)
	if !strings.HasPrefix(a.q.want.Text, a.said.String()) {
		return fmt.Errorf("%w after %d events: %q, want a beginning of %q", errWrong, a.events, a.said.String(), a.q.want.Text)
	}
	if a.q.leaveEvents > 0 && a.events >= a.q.leaveEvents {
		a.leave()
		return context.Canceled
	}
	return nil
}

func (a *answering) take(c chunk) {
	for _, choice := range c.Choices {
		a.said.WriteString(choice.Delta.Content)
		a.said.WriteString(choice.Message.Content)
		a.said.WriteString(choice.Text)
		if choice.FinishReason != "" {
			a.finish += choice.FinishReason // twice is wrong
		}
	}
	if c.Usage != nil {
		a.tokens += c.Usage.CompletionTokens
	}
}

// unary reads a whole answer that is not streamed.
func (a *answering) unary(raw []byte) error {
	var c chunk
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%w: %w in %q", errWrong, err, raw)
	}
	if c.Error != nil {
		return fmt.Errorf("%w: status 200 with the error %s", errWrong, c.Error)
	}
	a.take(c)
	return a.check()
}

// check compares an answer that says that it is whole.
func (a *answering) check() error {
	w := a.q.want
	if got := a.said.String(); got != w.Text || a.finish != w.Finish || a.tokens != w.Tokens {
		return fmt.Errorf("%w: %q, finish %q, %d tokens; want %q, finish %q, %d tokens", errWrong, got, a.finish, a.tokens, w.Text, w.Finish, w.Tokens)
	}
	return nil
}
