package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/lockd/client"
	"remuda/lockd/wire"
)

// soon bounds what should take milliseconds, on a machine that is busy.
const soon = time.Minute

func get(t testing.TB, cfg client.Config) *client.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	g, err := newClient(t, cfg).Acquire(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { g.Close() })
	return g
}

func lost(t testing.TB, g *client.Grant) error {
	t.Helper()
	select {
	case <-g.Lost():
	case <-time.After(soon):
		t.Fatal("the lock is not lost")
	}
	require.ErrorIs(t, g.Err(), client.ErrLost)
	return g.Err()
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := client.New(client.Config{})
	for _, field := range []string{"address", `"group"`, `"holder"`, "connect timeout"} {
		require.ErrorContains(t, err, field)
	}
	_, err = client.New(client.Config{Addr: "tcp://10.0.0.1:7000", Group: "a\nb", Holder: strings.Repeat("x", 300)})
	for _, field := range []string{"TLS", `"group"`, `"holder"`, "session TTL"} {
		require.ErrorContains(t, err, field)
	}
	cases := []struct {
		name string
		edit func(*client.Config)
		want string
	}{
		{"relative path", func(c *client.Config) { c.Addr = "lockd.sock" }, "address"},
		{"relative unix URL", func(c *client.Config) { c.Addr = "unix://lockd.sock" }, "address"},
		{"abstract socket", func(c *client.Config) { c.Addr = "@lockd" }, "address"},
		{"long path", func(c *client.Config) { c.Addr = "/" + strings.Repeat("x", 107) }, "108 bytes"},
		{"NUL", func(c *client.Config) { c.Addr = "/a\x00b" }, "NUL"},
		{"other scheme", func(c *client.Config) { c.Addr = "http://127.0.0.1:7000" }, "address"},
		{"no port", func(c *client.Config) { c.Addr = "tcp://127.0.0.1" }, "address"},
		{"port 0", func(c *client.Config) { c.Addr = "tcp://127.0.0.1:0" }, "65535"},
		{"port by name", func(c *client.Config) { c.Addr = "tcp://127.0.0.1:http" }, "65535"},
		{"no host", func(c *client.Config) { c.Addr = "tcp://:7000" }, "65535"},
		{"a path after the port", func(c *client.Config) { c.Addr = "tcp://127.0.0.1:7000/" }, "65535"},
		{"another machine without TLS", func(c *client.Config) { c.Addr = "tcp://lockd.example:7000" }, "TLS is missing"},
		{"TLS on a Unix socket", func(c *client.Config) { c.TLS = clientTLS(t) }, "TLS is set"},
		{"group of bad UTF-8", func(c *client.Config) { c.Group = "\xff" }, "UTF-8"},
		{"session without TTL", func(c *client.Config) { c.Addr, c.SessionTTL = "tcp://127.0.0.1:7000", 0 }, "session TTL"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config("/lockd.sock")
			tc.edit(&cfg)
			_, err := client.New(cfg)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for _, addr := range []string{"/a.sock", "unix:///a.sock", "tcp://localhost:1", "tcp://[::1]:65535", "tcp://127.1.2.3:80"} {
		cfg := config(addr)
		cfg.Logger = nil
		_, err := client.New(cfg)
		require.NoError(t, err, addr)
	}
}

// TestLock goes through a lock's life over every transport.
func TestLock(t *testing.T) {
	life := []script{
		func(p *peer) { // goes away while the client waits
			p.acquire(0)
			p.send(waiting(3))
		},
		func(p *peer) { // in one piece, and gone at once
			p.acquire(0)
			p.send(waiting(2), waiting(1), granted(42))
		},
		func(p *peer) { // gone before it answers
			p.acquire(42)
		},
		func(p *peer) {
			p.acquire(42)
			p.send(regranted(42))
		},
		func(p *peer) {
			p.acquire(42)
			p.send(refused("stale_token"))
		},
	}
	transports := map[string]func(t *testing.T) client.Config{
		"unix":     func(t *testing.T) client.Config { return config(unixServer(t, life...)) },
		"unix URL": func(t *testing.T) client.Config { return config("unix://" + unixServer(t, life...)) },
		"tcp":      func(t *testing.T) client.Config { return config(tcpServer(t, nil, life...)) },
		"tls": func(t *testing.T) client.Config {
			cfg := config(tcpServer(t, serverTLS(t), life...))
			cfg.TLS = clientTLS(t)
			return cfg
		},
	}
	for name, start := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := start(t)
			var positions []int
			cfg.OnWaiting = func(n int) { positions = append(positions, n) }
			g := get(t, cfg)
			require.Equal(t, []int{3, 2, 1}, positions)
			require.EqualValues(t, 42, g.Token())
			err := lost(t, g)
			var r *client.RefusedError
			require.ErrorAs(t, err, &r)
			require.Equal(t, client.RefusedError{Code: "stale_token", Message: "because of stale_token"}, *r)
			require.ErrorContains(t, err, "because of stale_token")
		})
	}
}

// TestGrantThatWasNotRead: lockd has granted, the client never heard of it, and
// a local process is granted the same again.
func TestGrantThatWasNotRead(t *testing.T) {
	g := get(t, config(unixServer(t,
		func(p *peer) { p.acquire(0) },
		answers(0, regranted(7)))))
	require.EqualValues(t, 7, g.Token())
	require.NoError(t, g.Err())
}

func TestAcquireIsRefused(t *testing.T) {
	for _, code := range []string{"bad_request", "not_holder", "stale_token", "lost", "forbidden"} {
		t.Run(code, func(t *testing.T) {
			c := newClient(t, config(unixServer(t, answers(0, refused(code)))))
			g, err := c.Acquire(t.Context())
			require.Nil(t, g)
			var r *client.RefusedError
			require.ErrorAs(t, err, &r)
			require.Equal(t, code, r.Code)
			require.NotErrorIs(t, err, client.ErrLost)
		})
	}
	for _, code := range []string{"state_file", "novel", ""} {
		t.Run(code+" passes", func(t *testing.T) {
			var out bytes.Buffer
			cfg := config(unixServer(t,
				answers(0, refused(code)), answers(0, refused(code)), answers(0, granted(9))))
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Warn})
			g := get(t, cfg)
			require.EqualValues(t, 9, g.Token())
			g.Close()
			require.Equal(t, 1, strings.Count(out.String(), "because of "+code), "it warns once")
		})
	}
}

func TestLockIsNotGivenBack(t *testing.T) {
	cases := []struct {
		name   string
		answer wire.Event
		want   string
	}{
		{"stale", refused("stale_token"), "stale_token"},
		{"not holder", refused("not_holder"), "not_holder"},
		{"lost", refused("lost"), "lost"},
		{"forbidden", refused("forbidden"), "forbidden"},
		{"bad request", refused("bad_request"), "bad_request"},
		{"has to wait", waiting(1), "is waiting at position 1"},
		{"other token", regranted(6), "granted 6"},
		{"older token", regranted(4), "granted 4"},
		{"granted anew", granted(6), "granted 6"},
		{"same token, not regranted", granted(5), "regranted false"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := get(t, config(unixServer(t, grants(5), answers(5, tc.answer))))
			require.ErrorContains(t, lost(t, g), tc.want)
		})
	}
	t.Run("refused on the connection that has it", func(t *testing.T) {
		t.Parallel()
		g := get(t, config(unixServer(t, answers(0, granted(5), refused("lost")))))
		var r *client.RefusedError
		require.ErrorAs(t, lost(t, g), &r)
		require.Equal(t, "lost", r.Code)
	})
}

// breaches are what a good lockd never sends.
var breaches = map[string]string{
	"garbage":                 "\x16\x03\x01\x02\x00\n",
	"no JSON":                 "hello\n",
	"no object":               "[]\n",
	"empty line":              "\n",
	"no event":                "{}\n",
	"wrong type":              `{"event":"granted","token":"5","regranted":true}` + "\n",
	"token too large":         `{"event":"granted","token":18446744073709551616,"regranted":true}` + "\n",
	"negative token":          `{"event":"granted","token":-5,"regranted":true}` + "\n",
	"two objects":             `{"event":"granted","token":5,"regranted":true}{}` + "\n",
	"unknown event":           `{"event":"released"}` + "\n",
	"status":                  `{"event":"status","groups":[]}` + "\n",
	"pong":                    `{"event":"pong"}` + "\n",
	"end within a line":       `{"event":"granted","token":5,"regranted":true}`,
	"huge line":               `{"event":"granted","token":5,"regranted":true,"x":"` + strings.Repeat("x", wire.MaxLine) + `"}` + "\n",
	"endless line":            strings.Repeat("x", 1<<20),
	"line feed one too late":  `{"event":"granted","token":5,"regranted":true}` + strings.Repeat(" ", wire.MaxLine-45) + "\n",
	"deep":                    strings.Repeat("[", wire.MaxLine-1) + "\n",
	"a pong, then a regrant":  `{"event":"pong"}` + "\n" + `{"event":"granted","token":5,"regranted":true}` + "\n",
	"an event without a name": `{"event":"","token":5}` + "\n",
}

func TestBreachesAreALostConnection(t *testing.T) {
	for name, breach := range breaches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{})
			breaks := func(p *peer) {
				p.raw([]byte(breach))
				if strings.HasSuffix(breach, "\n") {
					p.silent() // the client must be the one that goes
				}
			}
			g := get(t, config(unixServer(t,
				func(p *peer) { p.acquire(0); breaks(p) },
				func(p *peer) { p.acquire(0); p.send(waiting(1)); breaks(p) },
				func(p *peer) { p.acquire(0); p.send(granted(5)); breaks(p) },
				func(p *peer) { p.acquire(5); breaks(p) },
				func(p *peer) { p.acquire(5); p.send(regranted(5)); close(gone); p.silent() },
			)))
			select {
			case <-gone:
			case <-time.After(soon):
				t.Fatal("the client does not reconnect")
			}
			require.NoError(t, g.Err())
			require.EqualValues(t, 5, g.Token())
		})
	}
	for name, events := range map[string][]wire.Event{
		"granted twice":         {granted(5), granted(5)},
		"granted another":       {granted(5), regranted(6)},
		"waiting after granted": {granted(5), waiting(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			back := make(chan struct{})
			g := get(t, config(unixServer(t, answers(0, events...), func(p *peer) {
				p.acquire(5)
				p.send(regranted(5))
				close(back)
				p.silent()
			})))
			<-back
			require.NoError(t, g.Err())
		})
	}
	for name, first := range map[string]wire.Event{"token 0": granted(0), "position 0": waiting(0), "position -1": waiting(-1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := get(t, config(unixServer(t, answers(0, first), answers(0, granted(8)))))
			require.EqualValues(t, 8, g.Token())
		})
	}
}

func TestByteByByte(t *testing.T) {
	drip := func(p *peer, events ...wire.Event) {
		for _, e := range events {
			line, _ := wire.EncodeEvent(e)
			for i := range line {
				p.raw(line[i : i+1])
			}
		}
	}
	back := make(chan struct{})
	g := get(t, config(unixServer(t,
		func(p *peer) {
			p.acquire(0)
			drip(p, waiting(2), waiting(1), granted(5))
		},
		func(p *peer) {
			p.acquire(5)
			drip(p, regranted(5))
			close(back)
			p.silent()
		})))
	<-back
	require.EqualValues(t, 5, g.Token())
	require.NoError(t, g.Err())
}

// TestRestart: lockd goes away with its socket and comes back.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen := func() net.Listener {
		ln, err := net.Listen("unix", path)
		require.NoError(t, err)
		return ln
	}
	stop := serve(t, listen(), answers(0, granted(5)))
	g := get(t, config(path))
	stop()
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	back := make(chan struct{})
	serve(t, listen(), func(p *peer) {
		p.acquire(5)
		p.send(regranted(5))
		close(back)
		p.silent()
	})
	select {
	case <-back:
	case <-time.After(soon):
		t.Fatal("the client does not come back")
	}
	require.NoError(t, g.Err())
}

// listenAs listens as another user: the kernel tells clients who called listen(2).
func listenAs(t *testing.T, uid uintptr, path string) net.Listener {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	be := func(uid uintptr) {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)) // of this thread alone
		require.Zero(t, errno)
	}
	be(uid)
	ln, err := net.Listen("unix", path)
	be(0)
	require.NoError(t, err)
	return ln
}

// TestServerOfAnotherUser: who can write where the socket is could play lockd.
func TestServerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can listen as another user")
	}
	dir := t.TempDir()
	for d := dir; d != "/" && d != filepath.Clean(os.TempDir()); d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o777))
	}
	path := filepath.Join(dir, "s")
	ln := listenAs(t, 65534, path)
	stop := serve(t, ln, (*peer).silent)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := newClient(t, config(path)).Acquire(ctx)
	require.ErrorContains(t, err, "user 65534 listens on the socket: must be user 0 or root")
	_, err = client.Status(t.Context(), config(path))
	require.ErrorContains(t, err, "user 65534 listens on the socket")
}

func TestStatus(t *testing.T) {
	since := time.Unix(1e9, 0).UTC()
	a := wire.Group{Group: "a", State: "held", Holder: "x", Token: 3, Since: &since, PID: 7, Waiters: []string{"y"}, Waiting: 1}
	b := wire.Group{Group: "b", State: "free", Waiters: []string{}}
	asked := func(events ...wire.Event) script {
		return func(p *peer) {
			if r, ok := p.read(); !ok || r != (wire.Request{Op: wire.OpStatus, Protocol: wire.Protocol}) {
				p.fail("the client sent %+v: want a status", r)
			}
			p.send(events...)
			p.silent()
		}
	}
	status := func(more bool, groups ...wire.Group) wire.Event {
		return wire.Event{Event: wire.StatusEvent, Groups: groups, More: more}
	}
	ask := func(t *testing.T, s script) ([]wire.Group, error) {
		cfg := client.DefaultConfig()
		cfg.Addr = unixServer(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return client.Status(ctx, cfg)
	}
	t.Run("one line", func(t *testing.T) {
		got, err := ask(t, asked(status(false, a, b)))
		require.NoError(t, err)
		require.Equal(t, []wire.Group{a, b}, got)
	})
	t.Run("several lines", func(t *testing.T) {
		got, err := ask(t, asked(status(true, a), status(true), status(false, b)))
		require.NoError(t, err)
		require.Equal(t, []wire.Group{a, b}, got)
	})
	t.Run("no groups", func(t *testing.T) {
		got, err := ask(t, asked(status(false)))
		require.NoError(t, err)
		require.Empty(t, got)
	})
	t.Run("refused", func(t *testing.T) {
		_, err := ask(t, asked(refused("forbidden")))
		var r *client.RefusedError
		require.ErrorAs(t, err, &r)
		require.Equal(t, "forbidden", r.Code)
	})
	t.Run("cut off", func(t *testing.T) {
		_, err := ask(t, func(p *peer) { p.read(); p.send(status(true, a)) })
		require.ErrorIs(t, err, io.EOF)
	})
	t.Run("out of place", func(t *testing.T) {
		_, err := ask(t, asked(granted(5)))
		require.ErrorContains(t, err, `"granted"`)
	})
	t.Run("garbage", func(t *testing.T) {
		_, err := ask(t, func(p *peer) { p.raw([]byte("hello\n")) })
		require.Error(t, err)
	})
	t.Run("no answer", func(t *testing.T) {
		cfg := client.DefaultConfig()
		cfg.Addr = unixServer(t, (*peer).silent)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := client.Status(ctx, cfg)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("nobody", func(t *testing.T) {
		_, err := client.Status(t.Context(), client.Config{Addr: "/no/such/socket", ConnectTimeout: time.Second})
		require.ErrorContains(t, err, "/no/such/socket")
	})
	t.Run("bad config", func(t *testing.T) {
		_, err := client.Status(t.Context(), client.Config{})
		require.ErrorContains(t, err, "address")
		require.ErrorContains(t, err, "connect timeout")
		require.NotContains(t, err.Error(), "group")
	})
	t.Run("tcp", func(t *testing.T) {
		cfg := client.Config{Addr: tcpServer(t, nil, asked(status(false, a))), ConnectTimeout: soon}
		got, err := client.Status(t.Context(), cfg)
		require.NoError(t, err)
		require.Equal(t, []wire.Group{a}, got)
	})
}

// descriptors counts this process's, its sockets and what not.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// TestNoDescriptorIsLeft: no test of this package runs beside this one.
func TestNoDescriptorIsLeft(t *testing.T) {
	once := func(t *testing.T) {
		// held, broken, given back, closed
		back := make(chan struct{})
		g := get(t, config(unixServer(t, grants(5), func(p *peer) {
			p.acquire(5)
			p.send(regranted(5))
			close(back)
			p.silent()
		})))
		<-back
		require.NoError(t, g.Close())
		// lost
		lost(t, get(t, config(unixServer(t, grants(5), answers(5, refused("lost"))))))
		// refused
		_, err := newClient(t, config(unixServer(t, answers(0, refused("lost"))))).Acquire(t.Context())
		require.Error(t, err)
		// the context ends while lockd is silent
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = newClient(t, config(unixServer(t, (*peer).silent))).Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		// TLS, and a handshake that hangs
		cfg := config(tcpServer(t, serverTLS(t), answers(0, granted(5))))
		cfg.TLS = clientTLS(t)
		require.NoError(t, get(t, cfg).Close())
		cfg.Addr = tcpServer(t, nil, (*peer).silent)
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = newClient(t, cfg).Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = client.Status(t.Context(), client.Config{Addr: unixServer(t, func(*peer) {}), ConnectTimeout: soon})
		require.Error(t, err)
	}
	t.Run("first", once) // what the runtime opens once and keeps
	before := descriptors(t)
	for i := range 5 {
		t.Run(fmt.Sprint(i), once)
	}
	require.Equal(t, before, descriptors(t))
}

func TestRefusedErrorText(t *testing.T) {
	err := error(&client.RefusedError{Code: "state_file", Message: "disk full"})
	require.EqualError(t, err, "lockd rejected the request (state_file): disk full")
	var r *client.RefusedError
	require.True(t, errors.As(fmt.Errorf("x: %w", err), &r))
}
