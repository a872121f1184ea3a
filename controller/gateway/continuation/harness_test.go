package continuation_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
)

const (
	model    = "org/tiny:1b"
	patience = time.Minute
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine1 is a simulated engine that is as fast as possible.
type engine1 struct {
	url  string
	http *http.Client
}

func startEngine(t *testing.T) *engine1 {
	t.Helper()
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger = model, "1", hclog.NewNullLogger()
	cfg.Rates = engine.Rates{}
	cfg.Exit = func(int) {}
	server, err := sim.New(cfg)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	transport := &http.Transport{}
	e := &engine1{url: "http://" + ln.Addr().String(), http: &http.Client{Transport: transport}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx, ln) })
	t.Cleanup(func() {
		cancel()
		transport.CloseIdleConnections()
		running.Wait()
	})
	require.Eventually(t, func() bool {
		resp, err := e.http.Get(e.url + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, patience, time.Millisecond)
	return e
}

// stream returns the whole stream that answers a body, line by line.
func (e *engine1) stream(t require.TestingT, chat bool, body []byte) []string {
	path := "/v1/completions"
	if chat {
		path = "/v1/chat/completions"
	}
	resp, err := e.http.Post(e.url+path, "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", body, raw)
	lines := strings.SplitAfter(string(raw), "\n")
	require.Empty(t, lines[len(lines)-1], "whole lines")
	return lines[:len(lines)-1]
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type chunk struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct {
		Index int
		Text  string
		Delta struct {
			Role    string
			Content string
		}
		Finish     *string `json:"finish_reason"`
		StopReason *string `json:"stop_reason"`
	}
	Usage *usage
}

// answer is what a client makes of a stream.
type answer struct {
	Text, Finish, StopReason string
	Roles, Finishes, Usages  int
	// Usage is the last that was told.
	Usage usage
	IDs   map[string]bool
	Done  bool
}

// read reads a stream as a strict client does: the data lines of one event are joined,
// all of them are JSON, nothing comes after [DONE].
func read(t require.TestingT, stream string) answer {
	a := answer{IDs: map[string]bool{}}
	var data []string
	sc := bufio.NewScanner(strings.NewReader(stream))
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "data:"):
			data = append(data, strings.TrimSpace(strings.TrimPrefix(line, "data:")))
			continue
		case line != "":
			require.True(t, strings.HasPrefix(line, ":"), "line %q", line)
			continue
		case len(data) == 0:
			continue
		}
		event := strings.Join(data, "\n")
		data = nil
		require.False(t, a.Done, "an event after [DONE]: %s", event)
		if event == "[DONE]" {
			a.Done = true
			continue
		}
		var c chunk
		require.NoError(t, json.Unmarshal([]byte(event), &c), "event %q", event)
		a.IDs[fmt.Sprint(c.ID, c.Model, c.Object, c.Created)] = true
		if c.Usage != nil {
			a.Usage = *c.Usage
		}
		if len(c.Choices) == 0 {
			a.Usages++
			continue
		}
		require.Zero(t, a.Finishes, "an event after the finish reason: %s", event)
		ch := c.Choices[0]
		a.Text += ch.Text + ch.Delta.Content
		if ch.Delta.Role != "" {
			a.Roles++
		}
		if ch.Finish != nil {
			a.Finishes++
			a.Finish = *ch.Finish
		}
		if ch.StopReason != nil {
			a.StopReason = *ch.StopReason
		}
	}
	require.NoError(t, sc.Err())
	return a
}
