package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

// TestInjection: what clients choose freely never becomes another header, another line of
// the access log or another event.
func TestInjection(t *testing.T) {
	t.Parallel()
	wire, engine := newWire(t, "a")
	path := filepath.Join(t.TempDir(), "access.log")
	f := newGateway(t, calm(t), func(c *gateway.Config) {
		c.AccessLog.Path = path
		c.Queue.CommentAfter, c.Queue.Wait, c.Queue.Restart = time.Millisecond, time.Second, time.Second
	})
	odd := engineAt("a", "127.0.0.1:1")
	odd.Name.Model, odd.Passing = "o\"\\d/d", false
	f.engines(engine, odd)
	lines := 0

	for _, id := range []string{"a\rSet-Cookie: x", "a\x00b", "a\x1b[2J", "a\x7f"} {
		k := f.talk()
		k.say("%sX-Request-Id: %s\r\n%s%s", start, id, length, plain)
		require.Equal(t, http.StatusBadRequest, k.hear().status, id)
		k.over()
	}
	require.Empty(t, wire.take(t))
	for id, kept := range map[string]bool{
		`a"b\c`: true, `{"a":1}`: true, "<script>": true, "%0d%0aSet-Cookie:x": true, "a:b,c;d": true,
		"a\tb": false, "a b": false, "\u0085a": false, "a\xff": false, "a\u2028b": false,
		"a\r\n X-Hidden: 1": false, "\r\nX-Request-Id: second": false,
	} {
		k := f.talk()
		k.say("%sUser-Agent: \"u\\\xff\r\nX-Request-Id: %s\r\n%s%s", start, id, length, plain)
		a := k.hear()
		lines++
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Len(t, a.header["X-Request-Id"], 1)
		require.Regexp(t, `^[0-9a-f]{32}$`, a.header.Get("X-Request-Id"))
		require.Empty(t, a.header.Get("Set-Cookie"))
		require.Empty(t, a.header.Get("X-Hidden"))
		k.inStep()
		seen := wire.take(t)
		require.Len(t, seen, 1)
		if kept {
			require.Equal(t, []string{id}, seen[0].r.Header["X-Request-Id"])
		} else {
			require.Equal(t, a.header["X-Request-Id"], seen[0].r.Header["X-Request-Id"])
		}
		require.Empty(t, seen[0].r.Header.Get("Set-Cookie"))
		require.Empty(t, seen[0].r.Header.Get("X-Hidden"))
	}

	// A client must not strip what the gateway adds by calling it hop by hop.
	k := f.talk()
	k.say("%sConnection: X-Request-Id, Via, Content-Length, Content-Type, Host, X-Forwarded-For, Accept-Encoding\r\nX-Request-Id: kept\r\nX-Forwarded-For: 9.9.9.9\r\n%s%s", start, length, plain)
	require.Equal(t, http.StatusOK, k.hear().status)
	lines++
	seen := wire.take(t)
	require.Len(t, seen, 1)
	require.Equal(t, "kept", seen[0].r.Header.Get("X-Request-Id"))
	require.Equal(t, "1.1 remuda", seen[0].r.Header.Get("Via"))
	require.Equal(t, "127.0.0.1", seen[0].r.Header.Get("X-Forwarded-For"))
	require.Equal(t, "identity", seen[0].r.Header.Get("Accept-Encoding"))
	require.EqualValues(t, len(plain), seen[0].r.ContentLength)

	for _, model := range []string{
		`m\r\nX-Hidden: 1\r\n\r\n{}`, `\u0000`, `\u001b[2J`, `\u2028`, `m\nremuda_gateway_ready 0\n`, `\ud800`, "m\xff", `\"},{\"`, strings.Repeat("m", 1<<20),
	} {
		k := f.talk()
		body := `{"model":"` + model + `"}`
		k.say("%sContent-Length: %d\r\n\r\n%s", start, len(body), body)
		a := k.hear()
		lines++
		a.requireError(t, http.StatusNotFound, "model_not_found")
		require.Less(t, len(a.body), 4<<10)
		require.Empty(t, a.header.Get("X-Hidden"))
		k.inStep()
	}
	require.Empty(t, wire.take(t))

	// A model that is known, and is waited for in a stream.
	name, err := json.Marshal(odd.Name.Model)
	require.NoError(t, err)
	a := f.post(`{"stream":true,"model":`+string(name)+`}`, "X-Request-Id", `"}`)
	lines++
	require.NoError(t, a.err)
	for line := range strings.Lines(a.body) {
		require.Regexp(t, `^(: remuda state=[A-Z]+ position=\d+ waited=\d+s( reason=".*")?|data: .*|)\n$`, line)
	}
	event, ok := strings.CutSuffix(a.body, "\n\ndata: [DONE]\n\n")
	require.True(t, ok, a.body)
	requireErrorBody(t, event[strings.LastIndex(event, "data: ")+len("data: "):], "model_unavailable")
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", odd.Name.Model, "code", "503"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_ready"))

	f.wait()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	got := 0
	for line := range strings.Lines(string(raw)) {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &v), line)
		require.NotEmpty(t, v["id"])
		require.Less(t, len(line), 8<<10)
		got++
	}
	require.Equal(t, lines, got)
}

// TestCompressedBodies are refused before a byte of them is read.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	wire, engine := newWire(t, "a")
	f := newGateway(t, calm(t))
	f.engines(engine)
	for _, coding := range []string{"gzip", "GZIP", "x-gzip", "br", "deflate", "zstd", "identity, gzip", "gzip, identity", "identity\r\nContent-Encoding: gzip", "\r\nContent-Encoding: gzip", "gzip;q=0", "*"} {
		t.Run(coding, func(t *testing.T) {
			f.t = t
			k := f.talk()
			k.say("%sContent-Encoding: %s\r\nExpect: 100-continue\r\nContent-Length: 30000000\r\n\r\n", start, coding)
			a := k.hear() // no 100 Continue
			a.requireError(t, http.StatusUnsupportedMediaType, "unsupported_content_encoding")
			k.over()
		})
	}
	f.t = t
	require.Equal(t, http.StatusOK, f.post(plain, "Content-Encoding", "Identity").status)
	require.Len(t, wire.take(t), 1)
	// What does not say that it is compressed is no JSON.
	f.post("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff").requireError(t, http.StatusBadRequest, "invalid_json")
	require.Empty(t, wire.take(t))
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
}

// TestLimitsOfRequests: what is allowed passes to the last byte, one more does not.
func TestLimitsOfRequests(t *testing.T) {
	t.Parallel()
	const header, body = 8 << 10, 100 << 10
	wire, engine := newWire(t, "a")
	f := newGateway(t, calm(t), func(c *gateway.Config) { c.Limits.Header, c.Limits.Body = header, body })
	f.engines(engine)
	prompt := func(size int) string {
		return fmt.Sprintf(`{"model":"m","prompt":"%s"}`, strings.Repeat("x", size-len(`{"model":"m","prompt":""}`)))
	}
	fields := func(n int) string { return strings.Repeat("X-A:\r\n", n) }
	chunked := func(p string) string {
		var b strings.Builder
		for part := range slices.Chunk([]byte(p), 1000) {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(part), part)
		}
		return b.String() + "0\r\n\r\n"
	}
	cases := []struct {
		name, sent string
		status     int
		code       string
	}{
		{"the largest body", fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", start, body, prompt(body)), 200, ""},
		{"the largest body in chunks", start + "Transfer-Encoding: chunked\r\n\r\n" + chunked(prompt(body)), 200, ""},
		{"a byte more", fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", start, body+1, prompt(body+1)), 413, "request_too_large"},
		{"a byte more in chunks", start + "Transfer-Encoding: chunked\r\n\r\n" + chunked(prompt(body+1)), 413, "request_too_large"},
		{"a terabyte that is asked for first", start + "Expect: 100-continue\r\nContent-Length: 1099511627776\r\n\r\n", 413, "request_too_large"},
		{"something else is expected", start + "Expect: a miracle\r\n" + length + plain, 417, ""},
		{"a long field", start + "X-A: " + strings.Repeat("a", header-200) + "\r\n" + length + plain, 200, ""},
		{"a field that is too long", start + "X-A: " + strings.Repeat("a", 2*header) + "\r\n" + length + plain, 431, ""},
		{"a field without an end", start + "X-A: " + strings.Repeat("a", 2*header), 431, ""},
		{"a long URI", "POST " + chat + "?" + strings.Repeat("a", header-200) + " HTTP/1.1\r\nHost: x\r\n" + length + plain, 200, ""},
		{"a URI that is too long", "POST " + chat + "?" + strings.Repeat("a", 2*header), 431, ""},
		{"a method without an end", strings.Repeat("P", 2*header), 431, ""},
		{"many fields", start + fields(120) + length + plain, 200, ""},
		{"too many fields", start + fields(128) + length + plain, 431, "too_many_headers"},
		{"too many fields that take no room", start + fields(2*header/6), 431, ""},
		{"trailers without an end", start + "Transfer-Encoding: chunked\r\n\r\nd\r\n" + plain + "\r\n0\r\n" + fields(2*header/6), 400, "bad_body"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			k := f.talk()
			// What is refused may be refused before all of it is sent.
			_, err := io.WriteString(k.c, c.sent)
			if c.status == http.StatusOK {
				require.NoError(t, err)
			}
			a := k.hear()
			require.Equal(t, c.status, a.status, a.body)
			if c.code != "" {
				a.requireError(t, c.status, c.code)
			}
			want := 1
			if c.status != http.StatusOK {
				want = 0
				_, err := io.Copy(io.Discard, k.in) // the connection is over
				if err != nil {
					require.ErrorIs(t, err, syscall.ECONNRESET)
				}
			}
			require.Len(t, wire.take(t), want)
		})
	}
	f.t = t
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

// TestClientsThatGoSilent: whatever a client has said, the gateway does not wait for more
// for ever.
func TestClientsThatGoSilent(t *testing.T) {
	t.Parallel()
	f := newGateway(t, calm(t), func(c *gateway.Config) {
		c.Limits.Body = 1000
		c.Timeouts.Header, c.Timeouts.Body, c.Timeouts.KeepAlive = 500*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
	})
	f.engines(newEngine(t, "a", says("x")))
	const live = "GET /live HTTP/1.1\r\nHost: x\r\n"
	cases := map[string]string{
		"nothing":                     "",
		"a byte":                      "P",
		"half a header":               start,
		"a request":                   live + "\r\n",
		"a request and three bytes":   live + "\r\nGET",
		"a request and half a header": live + "\r\n" + live,
		"an expectation":              start + "Expect: 100-continue\r\n" + length,
		"another expectation":         start + "Expect: a miracle\r\n" + length,
		"too large a length":          start + "Content-Length: 1001\r\n\r\n",
		"a length to OPTIONS *":       "OPTIONS * HTTP/1.1\r\nHost: x\r\n" + length,
		"a length to CONNECT":         "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n" + length,
		"a length to a HEAD":          "HEAD /live HTTP/1.1\r\nHost: x\r\n" + length,
		"too many fields":             start + strings.Repeat("X-A:\r\n", 200) + length,
		"a bad priority":              start + "X-Remuda-Priority: x\r\n" + length,
		"half a trailer":              start + "Transfer-Encoding: chunked\r\n\r\nd\r\n" + plain + "\r\n0\r\nX-A: b\r\n",
	}
	t.Run("clients", func(t *testing.T) { // ends with all of them
		for name, said := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := f.in(t).talk()
				k.say("%s", said)
				_, err := io.Copy(io.Discard, k.in) // ends when the gateway closes the connection
				if err != nil {
					require.ErrorIs(t, err, syscall.ECONNRESET)
				}
			})
		}
	})
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

// TestReceiverThatHangs: whoever takes no spans costs the access log no line and the
// gateway no clean end.
func TestReceiverThatHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	require.NoError(t, err)
	defer l.Close()
	f := newGateway(t, func(c *gateway.Config) {
		c.AccessLog.Path, c.Tracing.Endpoint, c.Tracing.Ratio = path, "http://"+l.Addr().String(), 1
	})
	f.engines(newEngine(t, "a", says("x")))
	require.Equal(t, http.StatusOK, f.post(plain).status)
	f.wait() // without an error
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(raw), "\n"))
}
