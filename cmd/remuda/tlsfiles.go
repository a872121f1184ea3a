package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
)

// tlsFiles are the files of one side of a TLS connection, of which both sides
// have certificates.
type tlsFiles struct {
	// prefix begins the names of the flags that name them.
	prefix        string
	cert, key, ca string
}

// declare declares the flags. of is what they are for, and other what the
// authorities are of.
func (f *tlsFiles) declare(fs *flag.FlagSet, of, other string) {
	fs.StringVar(&f.cert, f.prefix+"-cert", "", "certificate `file` for "+of)
	fs.StringVar(&f.key, f.prefix+"-key", "", "key `file` for "+of)
	fs.StringVar(&f.ca, f.prefix+"-ca", "", "`file` with the CAs of "+other+" for "+of)
}

// server is the TLS of a server that knows its clients by their certificates; nil
// without files.
func (f *tlsFiles) server() (*tls.Config, error) {
	pair, pool, err := f.read()
	if pool == nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}, nil
}

// client is the TLS of a client with a certificate; nil without files.
func (f *tlsFiles) client() (*tls.Config, error) {
	pair, pool, err := f.read()
	if pool == nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// read reads the certificate, its key and the authorities of the other side; pool
// is nil without files and after an error.
func (f *tlsFiles) read() (pair tls.Certificate, pool *x509.CertPool, err error) {
	if f.cert == "" && f.key == "" && f.ca == "" {
		return pair, nil, nil
	}
	if f.cert == "" || f.key == "" || f.ca == "" {
		return pair, nil, usagef("-%s-cert, -%s-key and -%s-ca must be set together", f.prefix, f.prefix, f.prefix)
	}
	if pair, err = tls.LoadX509KeyPair(f.cert, f.key); err != nil {
		return pair, nil, fmt.Errorf("-%s-cert and -%s-key: %w", f.prefix, f.prefix, err)
	}
	raw, err := os.ReadFile(f.ca)
	if err != nil {
		return pair, nil, fmt.Errorf("-%s-ca: %w", f.prefix, err)
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return pair, nil, fmt.Errorf("-%s-ca: %s contains no PEM certificate", f.prefix, f.ca)
	}
	return pair, pool, nil
}
