package gateway_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchPeers are programs of others that do what a gateway does at the least.
var benchPeers = []string{"nginx", "haproxy"}

// nginxConfig lets nginx do no more and no less than the gateway: it holds a request's body
// in memory, passes an answer on as it comes, and keeps its connections.
const nginxConfig = `worker_processes auto;
daemon off;
pid nginx.pid;
error_log stderr error;
worker_rlimit_nofile 20000;
events { worker_connections 8192; }
http {
  access_log off;
  client_max_body_size 0;
  client_body_buffer_size 1m;
  client_body_temp_path client;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_requests 1000000000;
  upstream engine {
    server ENGINE;
    keepalive 4096;
    keepalive_requests 1000000000;
  }
  server {
    listen LISTEN backlog=4096;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
`

// haproxyConfig has HAProxy's defaults, with connections that are kept and shared. Without
// http-no-delay it may hold an event back to send it with the next.
const haproxyConfig = `global
  maxconn 9000
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend clients
  bind LISTEN backlog 4096
  default_backend engines
backend engines
  server engine ENGINE pool-max-conn -1
`

// startBenchPeer starts nginx or HAProxy in front of the engine and fills in the rest of t.
// It returns false if the program is not there.
func startBenchPeer(b *testing.B, t *benchTarget, engine string) bool {
	b.Helper()
	path, err := findBenchPeer(t.name)
	if err != nil {
		return false
	}
	// A directory of root's is none that nginx's workers may enter.
	dir, err := os.MkdirTemp("", "remuda-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	t.addr = l.Addr().String()
	l.Close()

	file := filepath.Join(dir, t.name+".conf")
	text, args, version := haproxyConfig, []string{"-db", "-q", "-f", file}, "-v"
	if t.name == "nginx" {
		text, args = nginxConfig, []string{"-p", dir, "-e", "stderr", "-c", file}
	}
	text = strings.NewReplacer("ENGINE", engine, "LISTEN", t.addr).Replace(text)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	said, err := exec.Command(path, version).CombinedOutput()
	if err != nil {
		b.Fatalf("%s %s: %v\n%s", path, version, err, said)
	}
	t.version, _, _ = strings.Cut(string(said), "\n")
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			b.Errorf("%s does not end within %s of SIGTERM", t.name, patience)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // workers that outlive their master
	})
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", t.addr)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case end := <-ended:
			b.Fatalf("%s ended at once: %v", t.name, end)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s does not listen on %s within %s: %v", t.name, t.addr, patience, err)
		}
	}
	t.pids = []int{cmd.Process.Pid}
	return true
}

// findBenchPeer looks where tools/peers puts its programs, then on the PATH and where
// Debian installs servers.
func findBenchPeer(name string) (string, error) {
	var tried []error
	for _, path := range []string{filepath.Join("..", "..", ".tools", "bin", name), name, filepath.Join("/usr/sbin", name)} {
		found, err := exec.LookPath(path)
		if err == nil {
			return filepath.Abs(found)
		}
		tried = append(tried, err)
	}
	return "", fmt.Errorf("find %s: %w", name, errors.Join(tried...))
}
