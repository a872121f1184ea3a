package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-cleanhttp"
)

// gatewayClient is a client of a gateway's OpenAI API.
type gatewayClient struct {
	url, key string
	http     *http.Client
}

func newGatewayClient(address, key, ca string) (*gatewayClient, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the gateway's address is %q: must be a URL, such as %q", address, defaultGateway)
	}
	if strings.ContainsAny(key, "\r\n\x00") {
		return nil, errors.New("the API key contains a line break or a NUL byte")
	}
	transport := cleanhttp.DefaultPooledTransport()
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA certificate: %s contains no PEM certificate", ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &gatewayClient{url: strings.TrimRight(address, "/"), key: key, http: &http.Client{Transport: transport}}, nil
}

func (g *gatewayClient) close() { g.http.CloseIdleConnections() }

// gatewayError is an error that a gateway or an engine answers.
type gatewayError struct {
	Message string
	Code    any // a word, or a number as vLLM has it
	status  int
	hint    string
}

// Error is the message with a hint.
func (e *gatewayError) Error() string { return e.Message + e.hint }

// passing: the next request may be answered.
func (e *gatewayError) passing() bool {
	return e.status == 0 || e.status >= 500 || e.status == http.StatusTooManyRequests || e.status == http.StatusBadRequest
}

func (g *gatewayClient) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, g.url+path, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	if g.key != "" {
		req.Header.Set("Authorization", "Bearer "+g.key)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w: is \"remuda gateway\" running there? Set -gateway or %s to its address", err, envGateway)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var answer struct{ Error gatewayError }
	if json.Unmarshal(text, &answer) != nil || answer.Error.Message == "" {
		return nil, fmt.Errorf("gateway: %s answers %s %s with %s: is it a remuda gateway?", g.url, method, path, resp.Status)
	}
	e := &answer.Error
	e.status = resp.StatusCode
	if e.status == http.StatusUnauthorized {
		e.hint = ": set -key or " + envAPIKey
	}
	return nil, e
}

// models lists the names of the models that a gateway serves.
func (g *gatewayClient) models(ctx context.Context) ([]string, error) {
	resp, err := g.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("gateway: read the models: %w", err)
	}
	var names []string
	for _, m := range answer.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatRequest struct {
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
	MaxTokens int           `json:"max_tokens,omitempty"`
}

// chatEvents are called while an answer arrives: waits where the request waits, text for each piece
// of the answer or of the thoughts before it.
type chatEvents struct {
	waits func(state string)
	text  func(piece string, thought bool)
}

// chatAnswer is what is known of an answer beside its text.
type chatAnswer struct {
	replica string
	tokens  int
	// first and last are when its first and its last piece arrived, zero if it had none.
	first, last time.Time
	began       time.Time
}

// summary says who answered and how fast. total is the time until the answer's end.
func (a chatAnswer) summary(total time.Duration) string {
	var parts []string
	if a.replica != "" {
		parts = append(parts, a.replica)
	}
	if a.tokens > 0 {
		parts = append(parts, plural(a.tokens, "token"))
	}
	// The first token takes the time of the prompt and not that of the answer.
	if d := a.last.Sub(a.first); a.tokens > 1 && d > 0 {
		parts = append(parts, fmt.Sprintf("%.1f tokens/s", float64(a.tokens-1)/d.Seconds()))
	}
	if !a.first.IsZero() {
		parts = append(parts, fmt.Sprintf("first after %.2f s", a.first.Sub(a.began).Seconds()))
	}
	return strings.Join(append(parts, fmt.Sprintf("%.2f s", total.Seconds())), ", ")
}

// headerReplica is the gateway's header, or trailer, with the replica that answered.
const headerReplica = "X-Remuda-Replica"

// chat sends a conversation and reads the stream of its answer.
func (g *gatewayClient) chat(ctx context.Context, q chatRequest, on chatEvents) (chatAnswer, error) {
	body := struct {
		chatRequest
		Stream        bool            `json:"stream"`
		StreamOptions map[string]bool `json:"stream_options"`
	}{q, true, map[string]bool{"include_usage": true}}
	a := chatAnswer{began: time.Now()}
	resp, err := g.do(ctx, http.MethodPost, "/v1/chat/completions", body)
	var refused *gatewayError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		names, _ := g.models(ctx) // Without them there is no hint.
		refused.hint = didYouMean(q.Model, names)
		return a, err
	}
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.replica = resp.Header.Get(headerReplica)
	in := bufio.NewReader(resp.Body)
	for done := false; ; {
		line, err := in.ReadString('\n')
		if state, ok := strings.CutPrefix(strings.TrimSpace(line), ": remuda "); ok {
			on.waits(state)
		}
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			data = strings.TrimSpace(data)
			if done = done || data == "[DONE]"; !done {
				if err := a.chunk(data, on); err != nil {
					return a, err
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF) && done:
			if t := resp.Trailer.Get(headerReplica); t != "" {
				a.replica = t
			}
			return a, nil
		case errors.Is(err, io.EOF):
			return a, &gatewayError{Message: "the answer broke off"}
		case err != nil:
			return a, fmt.Errorf("gateway: read the answer: %w", err)
		}
	}
}

// chunk reads an event of the stream.
func (a *chatAnswer) chunk(data string, on chatEvents) error {
	var c struct {
		Choices []struct {
			Delta struct {
				Content string
				// Engines name the thoughts of a model in two ways.
				Reasoning        string
				ReasoningContent string `json:"reasoning_content"`
			}
		}
		Usage *struct {
			Tokens int `json:"completion_tokens"`
		}
		Error *gatewayError
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return fmt.Errorf("gateway: read the answer: %w", err)
	}
	if c.Error != nil {
		return c.Error
	}
	if c.Usage != nil {
		a.tokens = c.Usage.Tokens
	}
	for _, one := range c.Choices {
		d := one.Delta
		thought := d.Reasoning + d.ReasoningContent
		if thought+d.Content == "" {
			continue
		}
		a.last = time.Now()
		if a.first.IsZero() {
			a.first = a.last
		}
		if thought != "" {
			on.text(thought, true)
		}
		if d.Content != "" {
			on.text(d.Content, false)
		}
	}
	return nil
}
