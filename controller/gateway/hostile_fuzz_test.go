package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

// FuzzRequest sends what it likes over a connection. The gateway answers or closes, does
// not panic, takes no engine for broken, and passes on no more requests than a strict
// reader finds.
func FuzzRequest(f *testing.F) {
	wire, engine := newWire(f, "a")
	for _, s := range smugglings(engine) {
		f.Add([]byte(s.sent))
	}
	proper := start + length + plain
	for _, s := range []string{
		proper, proper + proper, start, "\r\n" + proper + "\r\n" + hidden, start + "Content-Length: 14\r\n\r\n" + plain,
		start + "Content-Length: 12\r\n\r\n" + plain, start + "Connection: close\r\n" + length + plain + hidden,
		"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n" + plain + proper,
	} {
		f.Add([]byte(s))
	}
	var log watchedLog
	addr := fuzzGateway(f, func(c *gateway.Config) {
		// A connection is over soon after what was sent.
		c.Timeouts.Header, c.Timeouts.Body, c.Timeouts.KeepAlive = 500*time.Millisecond, 500*time.Millisecond, 5*time.Millisecond
		c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Warn})
		c.Watcher = fixed{engine}
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, _ = c.Write(sent) // it may be refused before its end
		var got bytes.Buffer
		_, err = io.Copy(&got, c) // ends when the gateway closes the connection
		var failed net.Error
		require.False(t, errorsAs(err, &failed) && failed.Timeout(), "the connection stays open")
		require.Empty(t, log.take())
		require.True(t, got.Len() == 0 || bytes.HasPrefix(got.Bytes(), []byte("HTTP/1.")), "%q", got.String())
		seen := wire.take(t)
		require.LessOrEqual(t, len(seen), mayPass(string(sent)), "more requests than there are")
		require.GreaterOrEqual(t, len(regexp.MustCompile(`HTTP/1\.[01] 200 OK\r\n`).FindAll(got.Bytes(), -1)), len(seen), "a request without an answer")
		for _, one := range seen {
			if !bytes.Contains(bytes.ToLower(sent), []byte("transfer-encoding")) {
				require.Contains(t, string(sent), one.body, "a body that nobody sent")
			}
		}
		if string(sent) == proper {
			require.Len(t, seen, 1)
		}
	})
}

// fuzzGateway starts a gateway, which is ready, and returns its address.
func fuzzGateway(f *testing.F, change func(*gateway.Config)) string {
	f.Helper()
	cfg := gateway.DefaultConfig()
	cfg.Listen, cfg.OperatorListen = "127.0.0.1:0", "127.0.0.1:0"
	listening := make(chan string, 1)
	cfg.OnListen = func(a, _ net.Addr) { listening <- a.String() }
	change(&cfg)
	g, err := gateway.New(cfg)
	require.NoError(f, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	f.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	select {
	case addr := <-listening:
		return addr
	case err := <-done:
		done <- err
		f.Fatalf("the gateway did not start: %v", err)
		return ""
	}
}

// watchedLog keeps the warnings that bytes of a client must not cause.
type watchedLog struct {
	mu    sync.Mutex
	lines []string
}

// Write looks at a line of the log.
func (l *watchedLog) Write(line []byte) (int, error) {
	for _, bad := range []string{"panic", "engine failed", "cannot connect to the engine"} {
		if bytes.Contains(line, []byte(bad)) {
			l.mu.Lock()
			l.lines = append(l.lines, string(line))
			l.mu.Unlock()
		}
	}
	return len(line), nil
}

func (l *watchedLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.lines
	l.lines = nil
	return out
}

// mayPass counts the POSTs in s that have all of their body. Behind the first whose end
// is not beyond doubt there are none: in HTTP/1.0, with chunks that net/http cannot read, with
// another length than a number.
func mayPass(s string) int {
	clear11 := regexp.MustCompile(` HTTP/1\.[1-9][0-9]*$`)
	n := 0
	for {
		s = strings.TrimLeft(s, "\r\n")
		head, rest, ok := cutHead(s)
		if !ok {
			return n
		}
		post := 0
		if strings.HasPrefix(head[0], "POST ") {
			post = 1
		}
		plain, chunked, size := clear11.MatchString(head[0]), false, uint64(0)
		lengths := map[string]bool{}
		for _, field := range head[1:] {
			name, value, _ := strings.Cut(field, ":")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "transfer-encoding":
				chunked = true
			case "content-length":
				value = strings.Trim(value, " \t")
				lengths[value] = true
				var err error
				if size, err = strconv.ParseUint(value, 10, 63); err != nil {
					plain = false
				}
			}
		}
		switch {
		case !plain || len(lengths) > 1:
			return n + post
		case chunked:
			in := bufio.NewReader(strings.NewReader(s))
			r, err := http.ReadRequest(in)
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			if err != nil {
				return n + post
			}
			n += post
			behind, _ := io.ReadAll(in)
			s = string(behind)
			continue
		case size > uint64(len(rest)):
			return n
		}
		n += post
		s = rest[size:]
	}
}

// cutHead cuts the lines of a header off, folded ones put together.
func cutHead(s string) (lines []string, rest string, ok bool) {
	for {
		line, after, found := strings.Cut(s, "\n")
		if !found {
			return nil, "", false
		}
		line, s = strings.TrimSuffix(line, "\r"), after
		switch {
		case line == "":
			return lines, s, len(lines) > 0
		case len(lines) > 1 && (line[0] == ' ' || line[0] == '\t'):
			lines[len(lines)-1] += " " + strings.Trim(line, " \t")
		default:
			lines = append(lines, line)
		}
	}
}
