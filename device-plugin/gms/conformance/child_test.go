package conformance_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A client process does what its test tells it over its standard input, in frames
// of the same form as the server's: one order, one report.

// playClient is the life of a client process. It ends with its test.
func playClient(in io.Reader, out io.Writer) error {
	p := player{conns: map[string]rawConn{}, maps: map[string]*view{}}
	for {
		order, err := readFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		report, err := p.obey(order)
		if err != nil {
			report = message{"type": "failed", "error": err.Error()}
		}
		if _, err := out.Write(frame(encode(report))); err != nil {
			return err
		}
	}
}

type player struct {
	conns map[string]rawConn
	maps  map[string]*view
	fd    int // of the last answer
}

func (p *player) obey(o message) (message, error) {
	done := message{"type": "done"}
	name, _ := o["name"].(string)
	conn := p.conns[name]
	switch o.kind() {
	case "dial":
		c, err := dialRaw(o["path"].(string))
		p.conns[name] = c
		return done, err
	case "send":
		return done, conn.write(o["bytes"].([]byte))
	case "receive":
		a, err := conn.receive(time.Duration(o["ms"].(int64)) * time.Millisecond)
		if err != nil {
			return nil, err
		}
		if len(a.fds) == 1 {
			p.fd = a.fds[0]
		}
		return message{"type": "done", "body": encode(a.message), "fds": len(a.fds)}, nil
	case "map": // the last descriptor, which is closed
		v, err := newView(p.fd, o["size"].(int64), o["writable"].(bool))
		p.maps[name] = v
		return done, errors.Join(err, unix.Close(p.fd))
	case "fill":
		return done, p.maps[name].fill(byte(o["seed"].(int64)))
	case "verify":
		fault, err := p.maps[name].fault(byte(o["seed"].(int64)))
		return message{"type": "done", "fault": fault}, err
	case "close":
		return done, conn.c.Close()
	}
	return nil, fmt.Errorf("no such order: %v", o)
}

func readFrame(r io.Reader) (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return decode(body)
}

// client is a client process of a test.
type client struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

// newClient starts one. It ends with the test.
func newClient(t testing.TB, configure ...func(*exec.Cmd)) *client {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, f := range configure {
		f(cmd)
	}
	c := &client{t: t, cmd: cmd}
	c.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	c.out, err = cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(c.kill)
	return c
}

// kill ends it as a crash does. It may be called again.
func (c *client) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *client) pid() int { return c.cmd.Process.Pid }

// order has it do something, which may fail.
func (c *client) try(o message) (message, error) {
	c.t.Helper()
	_, err := c.in.Write(frame(encode(o)))
	require.NoError(c.t, err)
	report, err := readFrame(c.out)
	require.NoError(c.t, err)
	if report.kind() == "failed" {
		return nil, errors.New(report["error"].(string))
	}
	return report, nil
}

func (c *client) order(o message) message {
	c.t.Helper()
	report, err := c.try(o)
	require.NoError(c.t, err, "%v", o["type"])
	return report
}

func (c *client) dial(name, path string) {
	c.t.Helper()
	c.order(newMessage("dial", "name", name, "path", path))
}

// send has it send a request on a connection, without waiting for the answer.
func (c *client) send(name string, m message) {
	c.t.Helper()
	c.order(newMessage("send", "name", name, "bytes", frame(encode(m))))
}

// receive is the next answer that it gets on a connection.
func (c *client) receive(name string) (message, int64) {
	c.t.Helper()
	report := c.order(newMessage("receive", "name", name, "ms", patience.Milliseconds()))
	m, err := decode(report["body"].([]byte))
	require.NoError(c.t, err)
	return m, whole(c.t, report, "fds")
}

// nothingYet says that no answer has come to it for a moment.
func (c *client) nothingYet(name string) {
	c.t.Helper()
	_, err := c.try(newMessage("receive", "name", name, "ms", briefly.Milliseconds()))
	require.ErrorContains(c.t, err, "timeout")
}

// ask sends a request and returns the answer that belongs to it.
func (c *client) ask(name, kind string, pairs ...any) message {
	c.t.Helper()
	c.send(name, newMessage(kind+"_request", pairs...))
	m, _ := c.receive(name)
	require.Equal(c.t, kind+"_response", m.kind(), "%v", m)
	return m
}

// open dials and has a session granted; it returns the lock.
func (c *client) open(name, path, lock string) string {
	c.t.Helper()
	c.dial(name, path)
	m := c.ask(name, "handshake", "lock_type", lock, "timeout_ms", patience.Milliseconds())
	require.True(c.t, truth(c.t, m, "success"), "%v", m)
	return str(c.t, m, "granted_lock_type")
}

// mapOf has it map an export of an allocation, under the allocation's id.
func (c *client) mapOf(name string, a allocation) {
	c.t.Helper()
	c.mapAs(name, a, true)
}

func (c *client) mapAs(name string, a allocation, writable bool) {
	c.t.Helper()
	c.send(name, newMessage("export_allocation_request", "allocation_id", a.id))
	m, fds := c.receive(name)
	require.Equal(c.t, "export_allocation_response", m.kind(), "%v", m)
	require.EqualValues(c.t, 1, fds)
	c.order(newMessage("map", "name", a.id, "size", a.aligned, "writable", writable))
}

func (c *client) fill(a allocation, seed int64) {
	c.t.Helper()
	c.order(newMessage("fill", "name", a.id, "seed", seed))
}

// verify reads the whole mapping.
func (c *client) verify(a allocation, seed int64) {
	c.t.Helper()
	require.EqualValues(c.t, -1, whole(c.t, c.order(newMessage("verify", "name", a.id, "seed", seed)), "fault"), "bytes of %s are lost", a.id)
}

func (c *client) allocate(name string, size int64, tag string) allocation {
	c.t.Helper()
	m := c.ask(name, "allocate", "size", size, "tag", tag)
	return allocation{str(c.t, m, "allocation_id"), whole(c.t, m, "size"), whole(c.t, m, "aligned_size"), tag, whole(c.t, m, "layout_slot")}
}
