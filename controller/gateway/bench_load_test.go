package gateway_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// benchResult is what one connection has seen.
type benchResult struct {
	total, first, tokens []time.Duration
	failed               int
	err                  error
}

// measure loads one target for a while.
func measure(b *testing.B, c benchCase, t *benchTarget) benchRow {
	b.Helper()
	results := make([]benchResult, c.conns)
	before := cpuNow(b, t)
	begin := time.Now()
	end := begin.Add(*benchTime)
	var wg sync.WaitGroup
	for i := range c.conns {
		wg.Go(func() { results[i].load(c, i, t.addr, begin, end) })
	}
	wg.Wait()
	took := time.Since(begin)
	cpu := cpuSince(b, t, before)
	var all benchResult
	for _, r := range results {
		if r.err != nil {
			b.Fatalf("%s against %s: %v", c.name, t.name, r.err)
		}
		all.failed += r.failed
		all.total, all.first, all.tokens = append(all.total, r.total...), append(all.first, r.first...), append(all.tokens, r.tokens...)
	}
	if len(all.total) == 0 {
		b.Fatalf("%s over %d connections against %s: no request was answered, %d failed", c.name, c.conns, t.name, all.failed)
	}
	if all.failed > 0 && t.strict {
		b.Errorf("%s over %d connections against %s: %d requests failed", c.name, c.conns, t.name, all.failed)
	}
	us := func(d []time.Duration, q float64) float64 {
		if len(d) == 0 {
			return 0
		}
		slices.Sort(d)
		return float64(d[int(q*float64(len(d)-1))]) / float64(time.Microsecond)
	}
	return benchRow{
		Requests: len(all.total), Failed: all.failed, P50: us(all.total, .5), P99: us(all.total, .99), First: us(all.first, .5),
		Tokens: len(all.tokens), TokenP50: us(all.tokens, .5), TokenP99: us(all.tokens, .99),
		Rate: float64(len(all.total)) / took.Seconds(), CPU: cpu, took: took,
	}
}

// load sends one request after the other over connection i.
func (r *benchResult) load(c benchCase, i int, addr string, begin, end time.Time) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		r.err = err
		return
	}
	defer func() { conn.Close() }()
	br := bufio.NewReaderSize(conn, 32<<10)
	next := begin
	if c.rate > 0 {
		next = begin.Add(time.Second * time.Duration(i) / time.Duration(c.rate))
	}
	for {
		if c.rate > 0 {
			next = next.Add(time.Second * time.Duration(c.conns) / time.Duration(c.rate))
			time.Sleep(time.Until(next))
		}
		sent := time.Now()
		if sent.After(end) {
			return
		}
		first, err := r.request(conn, br, c.request)
		if err != nil {
			r.failed++
			conn.Close()
			if conn, err = net.Dial("tcp", addr); err != nil {
				r.err = err
				return
			}
			br.Reset(conn)
			continue
		}
		r.total = append(r.total, time.Since(sent))
		r.first = append(r.first, first.Sub(sent))
	}
}

// request sends one request and reads the whole answer. It returns when the first byte of
// the answer's body was there.
func (r *benchResult) request(conn net.Conn, br *bufio.Reader, request []byte) (time.Time, error) {
	if _, err := conn.Write(request); err != nil {
		return time.Time{}, err
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return time.Time{}, err
	}
	var buf [8192]byte
	var first time.Time
	size, kept := 0, 0 // kept bytes at the beginning of buf were read before
	for {
		n, err := resp.Body.Read(buf[kept:])
		now := time.Now()
		if size == 0 {
			first = now
		}
		size += n
		kept = r.stamps(buf[:kept+n], now)
		if err == io.EOF {
			break
		}
		if err != nil {
			return first, err
		}
	}
	if resp.StatusCode != http.StatusOK || size == 0 {
		return first, fmt.Errorf("status %d with %d bytes", resp.StatusCode, size)
	}
	return first, nil
}

// stamps notes how old each event in p is, and moves what may be the beginning of another
// stamp to the front of p. It returns how much that is.
func (r *benchResult) stamps(p []byte, now time.Time) int {
	for rest := p; ; {
		at := bytes.Index(rest, benchStamp)
		if at < 0 {
			return copy(p, rest[max(0, len(rest)-len(benchStamp)+1):])
		}
		digits := rest[at+len(benchStamp):]
		if len(digits) < benchDigits {
			return copy(p, rest[at:])
		}
		var written int64
		for _, d := range digits[:benchDigits] {
			written = 10*written + int64(d-'0')
		}
		r.tokens = append(r.tokens, now.Sub(time.Unix(0, written)))
		rest = digits[benchDigits:]
	}
}
