package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// maxBody bounds what is read of an answer, in bytes. The largest one is
	// an engine's metrics page, far below this.
	maxBody = 16 << 20
	// maxMessage bounds how much of an error answer goes into our error.
	maxMessage = 300
	// pollEvery is the pause between two looks at a change that the engine
	// has accepted but not finished. It only delays the news.
	pollEvery = 25 * time.Millisecond
)

// transport is for engines on this machine: no proxy, a connect that fails
// early, and no limit on how long an answer takes, which is the context's.
func transport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // it costs both sides more than it saves on one machine
	}
}

// api makes requests to one engine.
type api struct {
	base   *url.URL
	client *http.Client
	key    string
}

// statusError is an answer of the engine that is not 2xx.
type statusError struct {
	method, path string
	code         int
	message      string
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("%s %s responded %d %s", e.method, e.path, e.code, http.StatusText(e.code))
	if e.message != "" {
		s += ": " + e.message
	}
	return s
}

// hasStatus tells whether err is an answer with one of the codes.
func hasStatus(err error, codes ...int) bool {
	var e *statusError
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.code == code {
			return true
		}
	}
	return false
}

// send makes a request, whose body has size bytes unless it is nil, and hands
// the body of its 2xx answer to read.
func (a *api) send(ctx context.Context, method, path string, body io.Reader, size int64, read func(io.Reader) error) error {
	route, query, _ := strings.Cut(path, "?")
	u := a.base.JoinPath(route)
	u.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return err
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/json")
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err // names method and URL already
	}
	defer func() {
		// Read what is left, so that the connection can be used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
		_ = resp.Body.Close()
	}()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // best effort: the status is the news
		return &statusError{method, route, resp.StatusCode, errorMessage(text)}
	}
	return read(resp.Body)
}

// call makes a request and returns the whole body of its 2xx answer. in, if
// not nil, is sent as JSON.
func (a *api) call(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	var size int64
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body, size = bytes.NewReader(b), int64(len(b))
	}
	var answer []byte
	err := a.send(ctx, method, path, body, size, func(r io.Reader) (err error) {
		answer, err = io.ReadAll(io.LimitReader(r, maxBody+1))
		if err != nil {
			return fmt.Errorf("read response of %s %s: %w", method, path, err)
		}
		if len(answer) > maxBody {
			return fmt.Errorf("response of %s %s is larger than %d bytes", method, path, maxBody)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// get decodes the JSON answer of a GET into out.
func (a *api) get(ctx context.Context, path string, out any) error {
	b, err := a.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("unexpected response of GET %s (%w): %s", path, err, clip(string(b)))
	}
	return nil
}

// listed returns an error unless the engine lists the model, as OpenAI's API lists models.
func (a *api) listed(ctx context.Context, model string) error {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := a.get(ctx, "/v1/models", &list); err != nil {
		return fmt.Errorf("list the engine's models: %w", err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	if !slices.Contains(ids, model) {
		return fmt.Errorf("engine does not serve model %q: it serves %s; start it with --served-model-name %s",
			model, quoted(ids), model)
	}
	return nil
}

func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return fmt.Sprintf("%q", names)
}

// errorMessage finds the message in an error answer: {"error":"…"} (Ollama),
// {"error":{"message":"…"}} (OpenAI), {"detail":"…"} (FastAPI), or the text.
func errorMessage(b []byte) string {
	var shape struct {
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(b, &shape) != nil {
		return clip(string(b))
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	switch {
	case json.Unmarshal(shape.Error, &text) == nil && text != "":
		return clip(text)
	case json.Unmarshal(shape.Error, &nested) == nil && nested.Message != "":
		return clip(nested.Message)
	case json.Unmarshal(shape.Detail, &text) == nil && text != "":
		return clip(text)
	}
	return clip(string(b))
}

// clip makes s fit into one line of an error.
func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// poll calls done until it says true or fails, or ctx ends; then its error is
// what, which says what was waited for.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for first := true; ; first = false {
		ok, err := done()
		if err != nil && !first && ctx.Err() != nil { // what it said before tells more
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		if ok || err != nil {
			return err
		}
		t := time.NewTimer(pollEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-t.C:
		}
	}
}

// turn is a lock that waits no longer than a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another change of the engine is in progress: %w", context.Cause(ctx))
	}
}

func (t turn) give() { <-t }
