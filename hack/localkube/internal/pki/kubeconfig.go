package pki

import (
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const contextName = "localkube"

func encodeKubeconfig(server string, ca, cert, key []byte) ([]byte, error) {
	config := api.NewConfig()
	config.Clusters[contextName] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[contextName] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[contextName] = &api.Context{Cluster: contextName, AuthInfo: contextName}
	config.CurrentContext = contextName
	return clientcmd.Write(*config)
}
