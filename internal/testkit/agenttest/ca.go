// Package agenttest has what tests of agents need: an authority with certificates
// as PEM files, and free addresses on loopback.
package agenttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CA is an authority whose files live as long as the test.
type CA struct {
	// File has its certificate.
	File string

	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

// NewCA makes an authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	ca := &CA{t: t, dir: t.TempDir(), key: key, n: 1}
	ca.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	ca.File = ca.write("ca.pem", "CERTIFICATE", der)
	return ca
}

// Issue makes a certificate for loopback and the DNS names, for servers and clients, and
// returns its files.
func (ca *CA) Issue(names ...string) (cert, key string) {
	ca.t.Helper()
	ca.n++
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(ca.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(ca.n), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: append(names, "localhost"),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &pair.PublicKey, ca.key)
	require.NoError(ca.t, err)
	keyDER, err := x509.MarshalECPrivateKey(pair)
	require.NoError(ca.t, err)
	return ca.write(fmt.Sprintf("%d.pem", ca.n), "CERTIFICATE", der), ca.write(fmt.Sprintf("%d-key.pem", ca.n), "EC PRIVATE KEY", keyDER)
}

func (ca *CA) write(name, kind string, der []byte) string {
	path := filepath.Join(ca.dir, name)
	require.NoError(ca.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// Addresses returns n addresses on loopback on which nobody listens now.
func Addresses(t testing.TB, n int) []string {
	t.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		addresses[i] = l.Addr().String()
	}
	return addresses
}
