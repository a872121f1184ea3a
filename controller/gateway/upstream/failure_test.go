package upstream_test

import (
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
	"remuda/internal/testkit/loopback"
)

// sizes are bodies that are written with the header, behind it, and beside the reading.
var sizes = map[string]int{"no body": 0, "small body": 100, "body of its own": 20 << 10, "large body": 10 * upstream.Inline}

// TestNotConnected asks where nobody listens.
func TestNotConnected(t *testing.T) {
	for _, addr := range []string{loopback.Free(t), "nonsense", "127.0.0.1:99999"} {
		q := newQuestion(addr, filled(100))
		_, _, err := ask(t, newTransport(t), q)
		requireStage(t, err, upstream.NotConnected, false)
		require.Zero(t, q.connected.Load())
	}
}

// requireStage requires the error of a request that came so far.
func requireStage(t *testing.T, err error, stage upstream.Stage, kept bool) {
	t.Helper()
	var failed *upstream.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, stage, failed.Stage, "%v", err)
	require.Equal(t, kept, failed.Kept, "%v", err)
	require.Equal(t, failed.Err.Error(), err.Error())
}

// TestEndWithoutAnswer has an engine end connections instead of answering. The request is not
// sent again, on a new connection or on a kept one: the engine may have died of it.
func TestEndWithoutAnswer(t *testing.T) {
	reset := func(p *peer) { _ = p.SetLinger(0) }
	for name, end := range map[string]func(*peer){"end": func(*peer) {}, "reset": reset} {
		for size, n := range sizes {
			t.Run(name+", "+size, func(t *testing.T) {
				t.Parallel()
				t.Run("new", func(t *testing.T) {
					e := newEngine(t, func(p *peer) {
						p.request()
						end(p)
					})
					q := newQuestion(e.addr, filled(n))
					_, _, err := ask(t, newTransport(t), q)
					var op *net.OpError
					require.True(t, err != nil && (strings.Contains(err.Error(), "EOF") || errorsAs(err, &op)), "%v", err)
					requireStage(t, err, upstream.Unanswered, false)
					require.EqualValues(t, 1, e.accepted.Load(), "connections")
					require.EqualValues(t, 1, q.connected.Load())
				})
				t.Run("kept", func(t *testing.T) {
					e := newEngine(t, func(p *peer) {
						p.request()
						p.say(fine)
						if p.nth == 1 {
							p.request()
							end(p)
							return
						}
						always(fine)(p)
					})
					tr := newTransport(t)
					works(t, tr, e.addr)
					q := newQuestion(e.addr, filled(n))
					_, _, err := ask(t, tr, q)
					requireStage(t, err, upstream.Unanswered, true)
					require.EqualValues(t, 1, q.connected.Load())
					require.EqualValues(t, 1, e.accepted.Load(), "it was sent again")
					works(t, tr, e.addr)
				})
			})
		}
	}
}

// TestClosedWhileKept has an engine close connections that are kept: they are not used.
func TestClosedWhileKept(t *testing.T) {
	var waiting atomic.Int32
	together, end := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(p *peer) {
		if p.nth > 3 {
			always(fine)(p)
			return
		}
		p.request()
		if waiting.Add(1) == 3 {
			close(together)
		}
		<-together
		p.say(fine)
		<-end
	})
	tr := newTransport(t)
	done := make(chan error, 3)
	for range 3 {
		go func() {
			resp, err := tr.Do(t.Context(), &newQuestion(e.addr, nil).Request)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			done <- err
		}()
	}
	for range 3 {
		require.NoError(t, <-done)
	}
	kept(t, tr, 3)
	close(end)
	soon(t, "the ends of the connections", func() bool { _, quiet := upstream.Kept(tr); return quiet == 0 })
	q := newQuestion(e.addr, nil)
	_, text, err := ask(t, tr, q)
	require.NoError(t, err)
	require.Equal(t, "fine", text)
	require.EqualValues(t, 1, q.connected.Load(), "a dead connection was used")
	kept(t, tr, 1)
}

// TestBadHeader has an engine send what is no answer.
func TestBadHeader(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct {
		name, answer string
		want         error // nil is any
	}{
		{"ends in the status line", "HTTP/1.1 20", io.ErrUnexpectedEOF},
		{"ends in the header", ok + "Content-Le", io.ErrUnexpectedEOF},
		{"ends behind an informational answer", "HTTP/1.1 100 Continue\r\n\r\n", io.ErrUnexpectedEOF},
		{"another protocol", "SSH-2.0-OpenSSH_9.9\r\n", nil},
		{"no status", "HTTP/1.1 OK\r\n\r\n", nil},
		{"a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", nil},
		{"a negative status", "HTTP/1.1 -20 OK\r\n\r\n", nil},
		{"no colon", ok + "Content-Length 4\r\n\r\nfine", nil},
		{"a folded first line", ok + " Content-Length: 4\r\n\r\nfine", nil},
		{"two lengths", ok + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nfine", nil},
		{"a negative length", ok + "Content-Length: -4\r\n\r\nfine", nil},
		{"a coding nobody knows", ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", nil},
		{"zeros", strings.Repeat("\x00", 100) + "\n", nil},
	} {
		for size, n := range sizes {
			t.Run(c.name+", "+size, func(t *testing.T) {
				t.Parallel()
				e := newEngine(t, func(p *peer) {
					if p.nth > 1 {
						always(fine)(p)
						return
					}
					p.request()
					p.say(c.answer)
					if c.want == nil {
						p.gone()
					}
				})
				tr := newTransport(t)
				_, _, err := ask(t, tr, newQuestion(e.addr, filled(n)))
				require.Error(t, err)
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
				}
				require.EqualValues(t, 1, e.accepted.Load(), "connections")
				kept(t, tr, 0)
				works(t, tr, e.addr)
			})
		}
	}
}

// TestHeaderLimit has engines send headers of lengths around the limit. What follows a
// header may be as long as it likes.
func TestHeaderLimit(t *testing.T) {
	const status = "HTTP/1.1 200 OK\r\n"
	body := strings.Repeat("x", 300<<10)
	for _, limit := range []int{512, 8 << 10, 64 << 10} {
		for _, c := range []struct {
			name   string
			length int
			want   error
		}{
			{"far below", 100, nil}, {"one below", limit - 1, nil}, {"as long", limit, nil},
			{"one above", limit + 1, upstream.ErrHeaderTooLong}, {"far above", 4 * limit, upstream.ErrHeaderTooLong},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				const length = "Content-Length: 307200\r\n\r\n"
				e := newEngine(t, always(status+lines(c.length-len(status)-len(length))+length+body))
				tr := newTransport(t, func(cfg *upstream.Config) { cfg.MaxHeader = int64(limit) % (64 << 10) }) // 64 KiB is the default
				for range 2 {
					_, text, err := ask(t, tr, newQuestion(e.addr, nil))
					if c.want != nil {
						require.ErrorIs(t, err, c.want)
						kept(t, tr, 0)
						return
					}
					require.NoError(t, err)
					require.True(t, text == body, "another body")
				}
				require.EqualValues(t, 1, e.accepted.Load(), "connections")
			})
		}
	}
	t.Run("without an end", func(t *testing.T) {
		e := newEngine(t, func(p *peer) {
			p.request()
			p.say(status)
			for line := []byte("X-A: " + strings.Repeat("a", 1000) + "\r\n"); ; {
				if _, err := p.Write(line); err != nil {
					return
				}
			}
		})
		_, _, err := ask(t, newTransport(t), newQuestion(e.addr, nil))
		require.ErrorIs(t, err, upstream.ErrHeaderTooLong)
	})
	t.Run("a line without an end", func(t *testing.T) {
		e := newEngine(t, func(p *peer) {
			p.request()
			p.say(status + "X-A: ")
			for piece := []byte(strings.Repeat("a", 1000)); ; {
				if _, err := p.Write(piece); err != nil {
					return
				}
			}
		})
		_, _, err := ask(t, newTransport(t), newQuestion(e.addr, nil))
		require.ErrorIs(t, err, upstream.ErrHeaderTooLong)
	})
}

// TestInformational has an engine send answers 1xx before the real one.
func TestInformational(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\n" + lines(60<<10) + "\r\n"
	for _, c := range []struct {
		name  string
		hints string
		want  error
	}{
		{"five", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 5), nil},
		{"five long ones", strings.Repeat(hint, 5), nil},
		{"six", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 6), upstream.ErrInformational},
		{"many", strings.Repeat("HTTP/1.1 199 X\r\nContent-Length: 9\r\n\r\n", 1000), upstream.ErrInformational},
		{"one that is too long", "HTTP/1.1 103 Early Hints\r\n" + lines(70<<10) + "\r\n", upstream.ErrHeaderTooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, always(c.hints+fine))
			tr := newTransport(t)
			_, text, err := ask(t, tr, newQuestion(e.addr, nil))
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				kept(t, tr, 0)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "fine", text)
			kept(t, tr, 1)
		})
	}
}

// TestSlowHeader has an engine send its answer byte by byte.
func TestSlowHeader(t *testing.T) {
	e := newEngine(t, func(p *peer) {
		p.request()
		for i := range len(fine) {
			p.say(fine[i : i+1])
			runtime.Gosched() // the reader takes what is there
		}
		always(fine)(p)
	})
	tr := newTransport(t)
	works(t, tr, e.addr)
	works(t, tr, e.addr)
	require.EqualValues(t, 1, e.accepted.Load(), "connections")
}
