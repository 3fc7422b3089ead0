package archive

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob/azureblob"
)

func openAzure(ctx context.Context, d Destination, at location) (*bucketStore, error) {
	client, err := d.azureContainer(at)
	if err != nil {
		return nil, err
	}
	bucket, err := azureblob.OpenBucket(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	return &bucketStore{bucket: bucket}, nil
}

func (d Destination) azureContainer(at location) (*container.Client, error) {
	account := d.Credentials[CredentialAzureAccount]
	server := strings.TrimSuffix(d.Endpoint, "/")
	if server == "" {
		server = "https://" + account + ".blob.core.windows.net"
	}
	url := server + "/" + at.bucket
	options := azcore.ClientOptions{Transport: &http.Client{Transport: d.transport()}}
	if key := d.Credentials[CredentialAzureKey]; key != "" {
		shared, err := container.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, errors.New("spec.backup.credentials: the Secret's " + CredentialAzureKey + " is not in base64; copy it again from the storage account's access keys")
		}
		return container.NewClientWithSharedKeyCredential(url, shared, &container.ClientOptions{ClientOptions: options})
	}
	if sas := d.Credentials[CredentialAzureSAS]; sas != "" {
		return container.NewClientWithNoCredential(url+"?"+strings.TrimPrefix(sas, "?"), &container.ClientOptions{ClientOptions: options})
	}
	identity, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options})
	if err != nil {
		return nil, errors.Join(errNoIdentity, err)
	}
	return container.NewClient(url, identity, &container.ClientOptions{ClientOptions: options})
}
