package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/lockd/client"
	"remuda/lockd/wire"
)

const second = time.Second

// session is a config with a session, of 9 s: a ping is due every 3 s.
func session() client.Config {
	cfg := config("tcp://127.0.0.1:7000")
	cfg.SessionTTL = 9 * second
	return cfg
}

// acquire gets the lock in a bubble.
func acquire(t *testing.T, c *client.Client) *client.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	g, err := c.Acquire(ctx)
	require.NoError(t, err)
	require.NoError(t, g.Err())
	return g
}

// lostAt waits for the loss and checks when it was, counted from start.
func lostAt(t *testing.T, g *client.Grant, start time.Time, want time.Duration) {
	t.Helper()
	select {
	case <-g.Lost():
	case <-time.After(time.Hour):
		t.Fatal("the lock was not lost within an hour")
	}
	require.Equal(t, want, time.Since(start))
	require.ErrorIs(t, g.Err(), client.ErrLost)
	require.NotErrorIs(t, g.Err(), client.ErrClosed)
	synctest.Wait() // what was left running would end the bubble with a panic
	require.NoError(t, g.Close())
	require.NotErrorIs(t, g.Err(), client.ErrClosed, "the first reason stays")
}

// TestSession: a lock is lost SessionTTL after the send of the last request that
// was answered, to the nanosecond.
func TestSession(t *testing.T) {
	cases := []struct {
		name  string
		dials func(t *testing.T) []dial
		want  time.Duration
	}{
		{"no ping is answered", func(t *testing.T) []dial {
			return []dial{up(t, answers(0, granted(5)))}
		}, 9 * second},
		{"lockd reads nothing more", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(20 * second)
			}), hangs}
		}, 9 * second},
		{"only the first ping is answered", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.send(pong)
				p.silent()
			})}
		}, 12 * second},
		{"the first ping is answered late, the others never", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.ping()
				time.Sleep(2 * second) // at 8 s
				p.send(pong)
				p.silent()
			})}
		}, 12 * second},
		{"the first ping is answered too late", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.ping()
				time.Sleep(3*second + 1)
				p.send(pong, pong)
				p.silent()
			})}
		}, 9 * second},
		{"the first ping is answered as the session ends", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.ping()
				time.Sleep(3 * second)
				p.send(pong, pong)
				p.silent()
			})}
		}, 9 * second},
		{"every ping is answered late, until none is", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				for range 10 { // sent at 3, 6, … 30 s, answered 2 s after each
					p.ping()
					time.Sleep(2 * second)
					p.send(pong)
				}
				p.silent()
			})}
		}, 39 * second},
		{"the grant comes late, and after pings", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(waiting(1))
				for range 5 {
					p.ping()
					p.send(pong)
				}
				time.Sleep(2 * second) // at 17 s
				p.send(granted(5))
				p.silent()
			})}
		}, 24 * second},
		{"the connection breaks and lockd stays away", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.send(pong)
				time.Sleep(second)
			}), away}
		}, 12 * second},
		{"the connection breaks and no other can be made", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(4 * second)
			}), hangs}
		}, 9 * second},
		{"the connection breaks and lockd is silent", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				p.ping()
				p.send(pong)
				time.Sleep(second)
			}), up(t, (*peer).silent)}
		}, 12 * second},
		{"the connection breaks and lockd answers nothing but pings", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(second)
			}), up(t, func(p *peer) {
				p.acquire(5)
				p.pongs()
			})}
		}, 9 * second},
		{"the lock is given back and the session starts anew", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(2 * second)
			}), up(t, func(p *peer) {
				p.acquire(5) // at 2 s
				time.Sleep(2 * second)
				p.send(regranted(5))
				p.silent()
			})}
		}, 11 * second},
		{"the lock is given back too late", func(t *testing.T) []dial {
			return []dial{up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(2 * second)
			}), up(t, func(p *peer) {
				p.acquire(5)
				time.Sleep(7 * second)
				p.send(regranted(5))
				p.silent()
			})}
		}, 9 * second},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, session())
				piped(c, tc.dials(t)...)
				start := time.Now()
				g := acquire(t, c)
				lostAt(t, g, start, tc.want)
				require.ErrorContains(t, g.Err(), "the session has expired")
				time.Sleep(time.Minute) // the scripts end
			})
		})
	}
}

// TestSessionIsKept: with its pings answered, a session lasts.
func TestSessionIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, session())
		dials := piped(c, up(t, func(p *peer) {
			p.acquire(0)
			p.send(granted(5))
			for {
				if _, ok := p.read(); !ok {
					return
				}
				time.Sleep(2 * second)
				p.send(pong)
			}
		}))
		g := acquire(t, c)
		time.Sleep(time.Hour)
		require.NoError(t, g.Err())
		require.Len(t, dials(), 1)
		require.NoError(t, g.Close())
		time.Sleep(time.Minute) // the script ends
	})
}

// TestWaiterKeepsItsSession: a waiter pings too, and asks anew when lockd is
// silent.
func TestWaiterKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, session())
		start := time.Now()
		dials := piped(c,
			up(t, func(p *peer) {
				p.acquire(0)
				p.send(waiting(1))
				for range 100 {
					p.ping()
					p.send(pong)
				}
				p.silent()
			}),
			up(t, (*peer).silent),
			up(t, func(p *peer) {
				p.acquire(0)
				p.send(waiting(1))
				p.pongs()
			}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := c.Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(start))
		at := dials()
		require.Len(t, at, 3)
		require.InDelta(t, 309, at[1].Sub(start).Seconds(), 0.1)
		require.InDelta(t, 9, at[2].Sub(at[1]).Seconds(), 0.1)
	})
}

// TestLockdStaysAway: without a session the lock is kept for as long as lockd is away, and
// is there once lockd is back.
func TestLockdStaysAway(t *testing.T) {
	for name, next := range map[string]func(t *testing.T) dial{
		"away":           func(*testing.T) dial { return away },
		"hangs":          func(*testing.T) dial { return hangs },
		"silent":         func(t *testing.T) dial { return up(t, (*peer).silent) },
		"reads nothing":  func(t *testing.T) dial { return up(t, func(*peer) { time.Sleep(time.Minute) }) },
		"closes at once": func(t *testing.T) dial { return up(t, func(*peer) {}) },
		"garbage":        func(t *testing.T) dial { return up(t, func(p *peer) { p.acquire(5); p.raw([]byte("hello\n")) }) },
		"state file":     func(t *testing.T) dial { return up(t, answers(5, refused("state_file"))) },
		"unknown code":   func(t *testing.T) dial { return up(t, answers(5, refused("novel"))) },
		"a pong":         func(t *testing.T) dial { return up(t, answers(5, pong)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, config("/lockd.sock"))
				script := []dial{up(t, grants(5))}
				for range 40 { // with the pauses between them, a minute or more
					script = append(script, next(t))
				}
				dials := piped(c, append(script, up(t, func(p *peer) {
					p.acquire(5)
					p.send(regranted(5))
					p.silent()
				}))...)
				g := acquire(t, c)
				time.Sleep(2 * time.Hour)
				require.NoError(t, g.Err())
				require.Len(t, dials(), 42)
				require.NoError(t, g.Close())
			})
		})
	}
}

func TestLockdIsBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, config("/lockd.sock"))
		start := time.Now()
		dials := piped(c,
			up(t, func(p *peer) {
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(100 * second)
			}),
			away, away, hangs, up(t, answers(5, refused("state_file"))),
			up(t, func(p *peer) {
				p.acquire(5)
				time.Sleep(7 * second)
				p.send(regranted(5))
				time.Sleep(100 * second)
			}),
			up(t, answers(5, regranted(5))))
		g := acquire(t, c)
		time.Sleep(time.Hour)
		require.NoError(t, g.Err())
		require.EqualValues(t, 5, g.Token())
		at := dials()
		require.Len(t, at, 7)
		require.Equal(t, 100*second, at[1].Sub(start), "it reconnects at once")
		require.Greater(t, at[2], at[1])
		require.NoError(t, g.Close())
	})
}

// TestDroppingServer: a lockd that gives the lock back and drops the connection
// again and again is not asked without a pause.
func TestDroppingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, config("/lockd.sock"))
		dials := piped(c, up(t, grants(5)), up(t, func(p *peer) {
			p.acquire(5)
			p.send(regranted(5))
		}))
		g := acquire(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, g.Err())
		require.Less(t, len(dials()), 150)
		require.Greater(t, len(dials()), 50)
		require.NoError(t, g.Close())
	})
}

// TestSessionTTLIsAnnounced, so that lockd can refuse one that is too long.
func TestSessionTTLIsAnnounced(t *testing.T) {
	for addr, want := range map[string]int64{"tcp://127.0.0.1:7000": 30000, "/lockd.sock": 0} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, config(addr))
			piped(c, up(t, func(p *peer) {
				if r, ok := p.read(); !ok || r.SessionTTL != want {
					p.fail("the client sent %+v: want a session TTL of %d", r, want)
				}
				p.send(granted(5))
				p.pongs()
			}))
			require.NoError(t, acquire(t, c).Close())
		})
	}
}

// TestHeartbeat: signs of life on a Unix socket are no session. A lockd that does
// not answer them costs nothing.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config("/lockd.sock")
		cfg.Heartbeat = 6 * time.Second
		c := newClient(t, cfg)
		pings := make(chan time.Time, 100)
		piped(c, up(t, func(p *peer) {
			if r, ok := p.read(); !ok || r.SessionTTL != 6000 {
				p.fail("the client sent %+v: want a TTL of 6000", r)
			}
			p.send(granted(5))
			for {
				r, ok := p.read()
				if !ok {
					return
				}
				if r.Op != wire.OpPing {
					p.fail("the client sent %+v: want a ping", r)
				}
				pings <- time.Now()
			}
		}))
		g := acquire(t, c)
		first := <-pings
		require.Equal(t, 2*time.Second, (<-pings).Sub(first))
		time.Sleep(time.Minute)
		require.NoError(t, g.Err())
		require.NoError(t, g.Close())
	})
}

// TestNoPings: a process that lockd can see is not asked whether it lives.
func TestNoPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, config("/lockd.sock"))
		piped(c, up(t, func(p *peer) {
			p.acquire(0)
			p.send(granted(5))
			if r, ok := p.read(); ok {
				p.fail("the client sent %+v", r)
			}
		}))
		g := acquire(t, c)
		time.Sleep(100 * time.Hour)
		require.NoError(t, g.Err())
		require.NoError(t, g.Close())
	})
}

func TestAcquireBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, config("/lockd.sock"))
		dials := piped(c, away)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, errAway.Error())
		at := dials()
		most := 20 * time.Millisecond
		for i := range at[1:] {
			gap := at[i+1].Sub(at[i])
			require.LessOrEqual(t, gap, most)
			require.GreaterOrEqual(t, gap, most/2)
			most = min(2*most, second)
		}
		require.Equal(t, second, most)
	})
}

// TestAcquireEndsWithItsContext: in every state, at once.
func TestAcquireEndsWithItsContext(t *testing.T) {
	cause := errors.New("no longer wanted")
	for name, dials := range map[string]func(t *testing.T) []dial{
		"connecting":   func(*testing.T) []dial { return []dial{hangs} },
		"away":         func(*testing.T) []dial { return []dial{away} },
		"no answer":    func(t *testing.T) []dial { return []dial{up(t, (*peer).silent)} },
		"waiting":      func(t *testing.T) []dial { return []dial{up(t, answers(0, waiting(1), waiting(2)))} },
		"state file":   func(t *testing.T) []dial { return []dial{up(t, answers(0, refused("state_file")))} },
		"garbage":      func(t *testing.T) []dial { return []dial{up(t, func(p *peer) { p.raw([]byte("{\n")) })} },
		"nothing read": func(t *testing.T) []dial { return []dial{up(t, func(*peer) { time.Sleep(time.Minute) })} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, config("/lockd.sock"))
				piped(c, dials(t)...)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(5*second, func() { cancel(cause) })
				start := time.Now()
				g, err := c.Acquire(ctx)
				require.Nil(t, g)
				require.ErrorIs(t, err, cause)
				// A write into a pipe that nobody reads may wait for its own end.
				require.InDelta(t, 5, time.Since(start).Seconds(), 1)
				time.Sleep(time.Hour)
			})
		})
	}
	t.Run("before it starts", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := newClient(t, config("/no/such/socket")).Acquire(ctx)
		require.ErrorIs(t, err, cause)
	})
}

// TestCloseIsPrompt in every state of a holder.
func TestCloseIsPrompt(t *testing.T) {
	for name, next := range map[string]func(t *testing.T) dial{
		"held":          nil,
		"away":          func(*testing.T) dial { return away },
		"connecting":    func(*testing.T) dial { return hangs },
		"no answer":     func(t *testing.T) dial { return up(t, (*peer).silent) },
		"nothing read":  func(t *testing.T) dial { return up(t, func(*peer) { time.Sleep(time.Minute) }) },
		"no connection": func(t *testing.T) dial { return up(t, func(*peer) {}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, config("/lockd.sock"))
				if next == nil {
					piped(c, up(t, answers(0, granted(5))))
				} else {
					piped(c, up(t, grants(5)), next(t))
				}
				g := acquire(t, c)
				time.Sleep(5 * second)
				start := time.Now()
				require.NoError(t, g.Close())
				require.LessOrEqual(t, time.Since(start), second)
				<-g.Lost()
				require.ErrorIs(t, g.Err(), client.ErrLost)
				require.ErrorIs(t, g.Err(), client.ErrClosed)
				require.NoError(t, g.Close(), "again")
				time.Sleep(time.Hour)
			})
		})
	}
}
