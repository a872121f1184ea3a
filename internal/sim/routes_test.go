package sim_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inference is one request of each inference route, streamed ones as well.
type inference struct {
	name, path, media, body string
	// computes is false where no GPU would be needed.
	computes bool
}

// form is a transcription's form with a second of sound.
func form(fields map[string]string) (media, body string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.SetBoundary("edge-of-a-part") // a fixed one is valid
	for k, v := range fields {
		_ = w.WriteField(k, v)
	}
	f, _ := w.CreateFormFile("file", "a.mp3")
	_, _ = f.Write(bytes.Repeat([]byte("neigh!"), 8000))
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// inferences returns one request of each route; model is the name that they ask for.
func inferences(model string) []inference {
	const json = "application/json"
	m := fmt.Sprintf(`{"model":%q,`, model)
	const ask = `"messages":[{"role":"user","content":"Please use get_weather."}],`
	const tool = `"name":"get_weather","description":"d"`
	formMedia, formBody := form(map[string]string{"model": model})
	_, streamed := form(map[string]string{"model": model, "stream": "true"})
	_, verbose := form(map[string]string{"model": model, "response_format": "verbose_json"})
	return []inference{
		{"chat", "/v1/chat/completions", json, m + hello + `}`, true},
		{"chat stream", "/v1/chat/completions", json, m + `"stream":true,"stream_options":{"include_usage":true},` + hello + `}`, true},
		{"chat call", "/v1/chat/completions", json, m + ask + `"tools":[{"type":"function","function":{` + tool + `}}]}`, true},
		{"completion", "/v1/completions", json, m + `"prompt":"x y"}`, true},
		{"embedding", "/v1/embeddings", json, m + `"input":"x y"}`, true},
		{"tokenize", "/tokenize", json, m + `"prompt":"x y"}`, false},
		{"detokenize", "/detokenize", json, m + `"tokens":[97]}`, false},
		{"response", "/v1/responses", json, m + `"input":"Hello"}`, true},
		{"response stream", "/v1/responses", json, m + `"input":"Hello","stream":true}`, true},
		{"response call", "/v1/responses", json, m + `"input":"get_weather","stream":true,"tools":[{"type":"function",` + tool + `}]}`, true},
		{"message", "/v1/messages", json, m + `"max_tokens":20,` + hello + `}`, true},
		{"message stream", "/v1/messages", json, m + `"max_tokens":20,"stream":true,` + hello + `}`, true},
		{"message tool", "/v1/messages", json, m + `"max_tokens":50,"stream":true,` + ask + `"tools":[{` + tool + `,"input_schema":{"type":"object"}}]}`, true},
		{"count tokens", "/v1/messages/count_tokens", json, m + hello + `}`, false},
		{"rerank", "/rerank", json, m + `"query":"horse","documents":["cow","horse"]}`, true},
		{"rerank v1", "/v1/rerank", json, m + `"query":"horse","documents":["cow","horse"]}`, true},
		{"rerank v2", "/v2/rerank", json, m + `"query":"horse","documents":["cow","horse"]}`, true},
		{"score", "/score", json, m + `"text_1":"horse","text_2":["cow","horse"]}`, true},
		{"score v1", "/v1/score", json, m + `"text_1":"horse","text_2":"cow"}`, true},
		{"classify", "/classify", json, m + `"input":["horse","cow"]}`, true},
		{"pooling", "/pooling", json, m + `"input":"horse cow"}`, true},
		{"moderation", "/v1/moderations", json, m + `"input":"hate"}`, true},
		{"transcription", "/v1/audio/transcriptions", formMedia, formBody, true},
		{"transcription stream", "/v1/audio/transcriptions", formMedia, streamed, true},
		{"translation", "/v1/audio/translations", formMedia, verbose, true},
		{"speech", "/v1/audio/speech", json, m + `"input":"The horse.","voice":"alloy"}`, true},
		{"speech events", "/v1/audio/speech", json, m + `"input":"The horse.","voice":"alloy","stream_format":"sse"}`, true},
		{"image", "/v1/images/generations", json, m + `"prompt":"A horse","n":2,"size":"64x32"}`, true},
	}
}

// send sends the request and returns what arrived.
func (s *sim1) send(in inference) (status int, body string, err error) {
	s.t.Helper()
	req := s.request(s.t.Context(), http.MethodPost, in.path, in.body)
	req.Header.Set("Content-Type", in.media)
	req.Header.Set("X-Request-Id", "fixed")
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestEveryRouteIsDeterministic(t *testing.T) {
	t.Parallel()
	one, two := start(t, nil), start(t, nil)
	times := regexp.MustCompile(`"created(_at)?":\d+`)
	for _, in := range inferences(modelName) {
		status, first, err := one.in(t).send(in)
		require.NoError(t, err, in.name)
		require.Equal(t, http.StatusOK, status, "%s: %s", in.name, first)
		_, second, err := two.in(t).send(in)
		require.NoError(t, err, in.name)
		require.Equal(t, times.ReplaceAllString(first, ""), times.ReplaceAllString(second, ""), in.name)
	}
}

// TestEveryRouteIsCounted also checks that the tokens are those of the usage.
func TestEveryRouteIsCounted(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	number := func(body, name string) (n int64) {
		all := regexp.MustCompile(`"`+name+`":(\d+)`).FindAllStringSubmatch(body, -1)
		if len(all) > 0 {
			_, err := fmt.Sscan(all[len(all)-1][1], &n)
			require.NoError(t, err)
		}
		return n
	}
	for _, in := range inferences(modelName) {
		require.Equal(t, http.StatusOK, s.status(http.MethodDelete, "/sim/counters"))
		_, body, err := s.send(in)
		require.NoError(t, err)
		got := s.counters()
		require.Equal(t, got.Total, got.Models[modelName], in.name)
		require.Equal(t, []int64{1, 1}, []int64{got.Total.Begun, got.Total.Answered}, in.name)
		require.Equal(t, []int{0, 1}, []int{got.InFlight, got.MostInFlight}, in.name)
		if !in.computes {
			require.Zero(t, got.Total.Prompt+got.Total.Completion, in.name)
			continue
		}
		require.Positive(t, got.Total.Prompt, in.name)
		cached := number(body, "cached_tokens") + number(body, "cache_read_input_tokens")
		require.Equal(t, cached, got.Total.Cached, in.name)
		if strings.Contains(body, `"prompt_tokens"`) {
			require.Equal(t, number(body, "prompt_tokens"), got.Total.Prompt, in.name)
			require.Equal(t, number(body, "completion_tokens"), got.Total.Completion, in.name)
		}
		if strings.Contains(body, `"input_tokens"`) {
			require.Equal(t, number(body, "input_tokens")+number(body, "cache_read_input_tokens"), got.Total.Prompt, in.name)
			require.Equal(t, number(body, "output_tokens"), got.Total.Completion, in.name)
		}
	}
}

func TestFaultsOfEveryRoute(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, in := range inferences(modelName) {
		_, _, err := s.send(in) // fills the prefix cache, which the usage shows
		require.NoError(t, err)
		_, whole, err := s.send(in)
		require.NoError(t, err)

		s.fault(`{"error500":true}`)
		status, body, err := s.send(in)
		require.NoError(t, err)
		require.Equal(t, http.StatusInternalServerError, status, in.name)
		if strings.HasPrefix(in.path, "/v1/messages") {
			require.JSONEq(t, `{"type":"error","error":{"type":"api_error","message":"the fault switch says so"}}`, body)
		} else {
			require.Contains(t, body, `{"error":{"message":"the fault switch says so","type":"InternalServerError"`, in.name)
		}

		s.fault(`{"error500":false,"drop_after_tokens":1}`)
		_, body, err = s.send(in)
		require.Error(t, err, in.name)
		require.Less(t, len(body), len(whole), in.name)

		s.fault(`{"drop_after_tokens":0,"garbage":"sse"}`)
		_, body, err = s.send(in)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(body, "garbage\xc3\x28\r\n\x00\x00"), in.name)

		s.fault(`{"garbage":"json"}`)
		_, body, err = s.send(in)
		require.NoError(t, err)
		require.Less(t, len(body), len(whole), in.name)

		s.fault(`{"garbage":"http"}`)
		_, _, err = s.send(in)
		require.ErrorContains(t, err, "malformed HTTP", in.name)

		s.fault(`{"garbage":"","hang":"all"}`)
		done := make(chan string, 1)
		go func() {
			_, body, _ := s.send(in)
			done <- body
		}()
		require.Eventually(t, func() bool { return s.counters().InFlight == 1 }, patience, time.Millisecond, in.name)
		require.Empty(t, done)
		s.fault(`{"hang":""}`)
		require.Len(t, <-done, len(whole), in.name)
	}
	s.idle()
}

// TestEveryRouteTakesPartInTheBatch: a request of each route waits while the engine
// hangs.
func TestEveryRouteTakesPartInTheBatch(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, in := range inferences(modelName) {
		if !in.computes {
			continue
		}
		s.fault(`{"hang":"generation"}`)
		done := make(chan int, 1)
		go func() {
			status, _, _ := s.send(in)
			done <- status
		}()
		require.Eventually(t, func() bool { return s.metrics()["vllm:num_requests_waiting"] >= 1 }, patience, time.Millisecond, in.name)
		require.Equal(t, 1, s.counters().InFlight)
		s.fault(`{"hang":""}`)
		require.Equal(t, http.StatusOK, <-done, in.name)
	}
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	for _, in := range inferences(modelName) {
		if in.computes {
			status, body, err := s.send(in)
			require.NoError(t, err)
			require.Equal(t, http.StatusServiceUnavailable, status, in.name)
			require.Contains(t, body, "asleep", in.name)
		}
	}
}

func TestEveryRouteRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, in := range inferences("other") {
		messages := strings.HasPrefix(in.path, "/v1/messages")
		for _, bad := range []struct {
			body, media string
			status      int
			message     string
		}{
			{in.body, in.media, http.StatusNotFound, "The model `other` does not exist."},
			{in.body, "text/plain", http.StatusBadRequest, "Unsupported Media Type"},
			{"{}", in.media, http.StatusBadRequest, ""},
			{`{"model":5}`, in.media, http.StatusBadRequest, ""},
			{"", in.media, http.StatusBadRequest, ""},
		} {
			status, body, err := s.send(inference{path: in.path, media: bad.media, body: bad.body})
			require.NoError(t, err)
			require.Equal(t, bad.status, status, "%s: %s", in.name, body)
			require.Contains(t, body, bad.message, in.name)
			if messages {
				require.True(t, strings.HasPrefix(body, `{"error":{"message":`) && strings.HasSuffix(body, `"type":"error"}`), body)
			} else {
				require.Regexp(t, `^\{"error":\{"message":"[^"]`, body)
			}
		}
	}
	got := s.counters()
	require.Equal(t, sums{}, got.Total)
	require.Equal(t, []int{0, 1}, []int{got.InFlight, got.MostInFlight})
}
