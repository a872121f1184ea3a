package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"remuda/controller/raft"
)

// transport is a server's side of TLS in all its roles. Each is nil without TLS.
type transport struct {
	raft *raft.TLS
	// server is for the API's listener, client for asking another server's API.
	server, client *tls.Config
	// gatewayCAs are the system's and this one.
	gatewayCAs *x509.CertPool
	// expires is when the certificate expires.
	expires time.Time
}

func (t TLS) load() (transport, error) {
	var out transport
	if !t.given() {
		return out, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return out, fmt.Errorf("tls.cert_file %s and tls.key_file %s: %w", t.CertFile, t.KeyFile, err)
	}
	out.expires = pair.Leaf.NotAfter
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return out, fmt.Errorf("tls.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return out, fmt.Errorf("tls.ca_file: %s contains no PEM certificate", t.CAFile)
	}
	// A gateway may have a certificate of a public CA, or of the servers' own.
	if out.gatewayCAs, err = x509.SystemCertPool(); err != nil {
		return out, fmt.Errorf("the system's CAs: %w", err)
	}
	out.gatewayCAs.AppendCertsFromPEM(pem)
	// Also for the API alone: the servers ask each other's API for the same name.
	secure, err := raft.LoadTLS(t.CAFile, t.CertFile, t.KeyFile, t.ServerName)
	if err != nil {
		return out, err
	}
	if t.Raft {
		out.raft = secure
	}
	if t.HTTP {
		// TLS 1.2 for the API: clients may be older than the servers. No HTTP/2: a query that
		// waits has a connection of its own, with TLS as without.
		out.server = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
		if t.VerifyClient {
			out.server.ClientCAs, out.server.ClientAuth = pool, tls.RequireAndVerifyClientCert
		}
		out.client = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: t.ServerName}
	}
	return out, nil
}
