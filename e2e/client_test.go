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
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/openai"
)

// client never reuses state between tests; it allows as many connections as a
// load test needs.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

// answer is a finished completion.
type answer struct {
	text   string
	chunks int
	// first and last are when the first and the last token came.
	first, last time.Time
	finish      string
	// makers are the engines that made it, in their order, by the process IDs that they stamp it with: see
	// stamped.
	makers []string
}

// streamError is an error that the stream itself reported.
var errBrokenStream = errors.New("broken stream")

// stamped returns a job whose simulated engines stamp each event of an answer: it was made by one engine, or
// two have been mixed.
func stamped(t testing.TB, job string) string {
	t.Helper()
	slots := `"-max-num-seqs", local.slots,`
	require.Contains(t, job, slots)
	return strings.ReplaceAll(job, slots, `"-stamp", `+slots)
}

// chatBody renders a streaming chat request.
func chatBody(model, prompt string, maxTokens int, stream bool) []byte {
	raw, err := json.Marshal(map[string]any{
		"model": model, "stream": stream, "max_tokens": maxTokens,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// statusError is an answer with another status than 200.
type statusError struct {
	code int
	body string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.body) }

// streamChat sends a streaming chat request and reads it to its end. Only a
// stream that ends with [DONE] is a success.
func streamChat(ctx context.Context, gateway, model, prompt string, maxTokens int) (answer, error) {
	return streamChatSeen(ctx, gateway, model, prompt, maxTokens, func(time.Time) {})
}

// bearer is the key of the credential in the context of a request, if it has one.
type bearer struct{}

// streamChatSeen is streamChat that tells when each token comes.
func streamChatSeen(ctx context.Context, gateway, model, prompt string, maxTokens int, seen func(time.Time)) (answer, error) {
	return streamBody(ctx, gateway, chatBody(model, prompt, maxTokens, true), seen)
}

// streamBody is streamChatSeen with a body of the caller's.
func streamBody(ctx context.Context, gateway string, body []byte, seen func(time.Time)) (answer, error) {
	var a answer
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key, _ := ctx.Value(bearer{}).(string); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(resp.Body)
		return a, statusError{resp.StatusCode, string(raw)}
	}
	return readStream(resp.Body, seen)
}

// refused asks a model with so short a patience that a request which would have to wait
// is refused, and returns why it was: nil if it was answered.
func refused(ctx context.Context, gateway, model string, patience time.Duration) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", bytes.NewReader(chatBody(model, "Hello", 1, false)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Remuda-Timeout", patience.String())
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		return statusError{resp.StatusCode, string(raw)}
	}
	return err
}

func readStream(r io.Reader, seen func(time.Time)) (answer, error) {
	var a answer
	var text strings.Builder
	sc := bufio.NewScanner(r)
	sc.Split(wholeLines)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok {
			if line := sc.Text(); line != "" && !strings.HasPrefix(line, ":") { // a comment tells that the request waits
				return a, fmt.Errorf("%w: unexpected line %q", errBrokenStream, sc.Text())
			}
			continue
		}
		if data == "[DONE]" {
			a.text = text.String()
			return a, nil
		}
		var chunk struct {
			Error       json.RawMessage `json:"error"`
			Fingerprint string          `json:"system_fingerprint"`
			Choices     []struct {
				Delta        struct{ Content string }
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return a, fmt.Errorf("%w: %w in %q", errBrokenStream, err, data)
		}
		if chunk.Error != nil {
			return a, fmt.Errorf("%w: %s", errBrokenStream, chunk.Error)
		}
		if maker, ok := strings.CutPrefix(chunk.Fingerprint, openai.Fingerprint+"-"); ok && (len(a.makers) == 0 || a.makers[len(a.makers)-1] != maker) {
			a.makers = append(a.makers, maker)
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != "" {
				a.last = time.Now()
				seen(a.last)
				if a.first.IsZero() {
					a.first = a.last
				}
				a.chunks++
				text.WriteString(c.Delta.Content)
			}
			if c.FinishReason != "" {
				a.finish = c.FinishReason
			}
		}
	}
	if err := sc.Err(); err != nil {
		return a, fmt.Errorf("%w: %w", errBrokenStream, err)
	}
	return a, fmt.Errorf("%w: it ended without [DONE]", errBrokenStream)
}
