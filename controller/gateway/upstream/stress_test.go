package upstream_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// Plans are what an engine does with a request. It answers the proper ones always.
var (
	proper = []string{"length", "chunked", "trailer", "hint", "unframed", "http10", "hang up", "say close", "stray", "slow", "nothing"}
	faulty = []string{"mute", "reset", "half a header", "half a body", "early", "early end", "garbage"}
)

// text is the body that answers a request: its own and nobody else's.
func text(id, digest string, size int) string {
	s := id + " " + digest + " "
	return s + strings.Repeat(id+"|", size/(len(id)+1))
}

func sum(body []byte) string {
	s := sha256.Sum256(body)
	return hex.EncodeToString(s[:])
}

// misbehave answers as each request says, on one connection.
func misbehave(p *peer) {
	for {
		r, err := http.ReadRequest(p.br)
		if err != nil {
			return
		}
		id, plan := r.Header.Get("X-Id"), r.Header.Get("X-Plan")
		size, _ := strconv.Atoi(r.Header.Get("X-Size"))
		head := "HTTP/1.1 200 OK\r\nX-Id: " + id + "\r\n"
		whole := func(s string) string { return head + "Content-Length: " + strconv.Itoa(len(s)) + "\r\n\r\n" + s }
		switch plan {
		case "early":
			p.say(whole(text(id, "early", size)))
		case "early end":
			p.say(whole(text(id, "early", size)))
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s := text(id, sum(body), size)
		chunks := head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n", 10, s[:10], len(s)-10, s[10:])
		switch plan {
		case "length":
			p.say(whole(s))
		case "chunked":
			p.say(chunks + "\r\n")
		case "trailer":
			p.say(chunks + "X-Sum: " + id + "\r\n\r\n")
		case "hint":
			p.say("HTTP/1.1 103 Early Hints\r\n\r\n")
			p.say(whole(s))
		case "slow":
			a := whole(s)
			for _, n := range []int{5, 20, 40} {
				p.say(a[:n])
				a = a[n:]
				time.Sleep(time.Millisecond)
			}
			p.say(a)
		case "nothing":
			p.say("HTTP/1.1 204 No Content\r\nX-Id: " + id + "\r\n\r\n")
		case "unframed":
			p.say(head + "\r\n" + s)
			return
		case "http10":
			p.say(strings.Replace(whole(s), "HTTP/1.1", "HTTP/1.0", 1))
			return
		case "hang up":
			p.say(whole(s))
			return
		case "say close":
			p.say(strings.Replace(whole(s), "\r\n", "\r\nConnection: close\r\n", 1))
			return
		case "stray":
			// What is left has to come with the end of the answer to be seen for sure.
			p.say(whole(text(id, sum(body), 0)) + whole("stray"))
		case "mute":
			return
		case "reset":
			_ = p.SetLinger(0)
			return
		case "half a header":
			p.say(head)
			return
		case "half a body":
			a := whole(s)
			p.say(a[:len(a)-5])
			return
		case "garbage":
			p.say("garbage\r\n\r\n")
			return
		}
	}
}

// TestStress asks many things at a time of engines that misbehave, with clients that
// leave. Each answer belongs to its request, each request is released once, and nothing
// is left.
func TestStress(t *testing.T) {
	const asking, each = 24, 25
	newEngine(t, always(fine)).close() // the first one opens what the runtime keeps open
	before := descriptors(t)
	engines := []*engine{newEngine(t, misbehave), newEngine(t, misbehave), newEngine(t, misbehave)}
	tr := newTransport(t, func(cfg *upstream.Config) { cfg.MaxIdle, cfg.Idle = 6, 30*time.Millisecond })
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	var all sync.WaitGroup
	faults := make(chan error, asking*each)
	questions := make(chan *question, asking*each)
	for i := range asking {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := range each {
				q, err := one(rnd, tr, engines[rnd.IntN(len(engines))].addr, fmt.Sprintf("%d-%d", i, n))
				questions <- q
				if err != nil {
					faults <- err
				}
			}
		})
	}
	all.Wait()
	close(faults)
	close(questions)
	for err := range faults {
		require.NoError(t, err)
	}
	for q := range questions {
		q.free(t)
	}
	tr.CloseIdle()
	for _, e := range engines {
		soon(t, "the end of the connections", func() bool { return e.open.Load() == 0 })
		e.close()
	}
	soon(t, "the descriptors", func() bool { return descriptors(t) <= before })
}

// one sends one request. The error is what is wrong.
func one(rnd *rand.Rand, tr *upstream.Transport, addr, id string) (*question, error) {
	plan, mayFail := proper[rnd.IntN(len(proper))], false
	if rnd.IntN(3) == 0 {
		plan, mayFail = faulty[rnd.IntN(len(faulty))], true
	}
	size := func() int { return []int{0, rnd.IntN(200), rnd.IntN(40 << 10), rnd.IntN(300 << 10)}[rnd.IntN(4)] }
	body := make([]byte, size())
	fill := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", id))))
	_, _ = fill.Read(body) // it has no errors
	answer := size()
	digest := sum(body)
	if strings.HasPrefix(plan, "early") {
		digest = "early"
	}
	if plan == "stray" {
		answer = 0
	}
	want := text(id, digest, answer)
	if plan == "nothing" {
		want = ""
	}
	q := newQuestion(addr, body)
	q.Header = http.Header{"X-Id": {id}, "X-Plan": {plan}, "X-Size": {strconv.Itoa(answer)}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leave := rnd.IntN(6)
	if leave == 0 {
		mayFail = true
		defer time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, cancel).Stop()
	}
	wrong := func(what string, err error) (*question, error) {
		return q, fmt.Errorf("%s, plan %q, %d bytes: %s: %w", id, plan, len(body), what, err)
	}
	resp, err := tr.Do(ctx, &q.Request)
	if err != nil {
		if n := q.released.Load(); n != 1 {
			return wrong("Do failed, and releases are", fmt.Errorf("%d", n))
		}
		// An engine may close a kept connection at any time, and nothing is sent twice.
		var failed *upstream.Error
		if kept := errors.As(err, &failed) && failed.Kept; !mayFail && !kept {
			return wrong("it failed", err)
		}
		return q, nil
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("X-Id"); got != id {
		return wrong("an answer to", fmt.Errorf("%q", got))
	}
	if leave == 1 {
		got := make([]byte, rnd.IntN(len(want)+1))
		n, _ := io.ReadFull(resp.Body, got)
		if string(got[:n]) != want[:n] {
			return wrong("the beginning of", fmt.Errorf("another body"))
		}
		return q, nil
	}
	got, err := io.ReadAll(resp.Body)
	switch {
	case err != nil && !mayFail:
		return wrong("the body failed", err)
	case err == nil && string(got) != want, !strings.HasPrefix(want, string(got)):
		return wrong("the body", fmt.Errorf("%d bytes, want %d", len(got), len(want)))
	}
	return q, nil
}
