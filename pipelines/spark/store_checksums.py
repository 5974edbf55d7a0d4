"""SHA-256 of the jars of object stores' connectors, by version of Hadoop, as published by Maven Central."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

S3_JARS: Final[Mapping[str, Mapping[str, str]]] = {
    "3.4.2": {
        "annotations-2.29.52.jar": "8cd8bd8afd7eca5a367f69fd87427f6d9f3e7d359962122da24d71f1963f00cd",
        "apache-client-2.29.52.jar": "c96494be30ecac6f0ab7a35fdd91a4c77ca8a5daf62f3d9d84644ef0f0524dc6",
        "arns-2.29.52.jar": "f5a4d1d9b4e4fc63c9bda49bcf1c59d23fd876b276c6b43aaca12969337303a6",
        "auth-2.29.52.jar": "4d8143b6198dc7a530c2ccdd813129c132b96736086c0d4fea85480b9bdbc5fe",
        "aws-core-2.29.52.jar": "eb560c064fbaac7e2e7f4a77ac343d3083bea0d7f6e2c69ba022d3f3e859be90",
        "aws-query-protocol-2.29.52.jar": "1b117672963ee5059c45f2aadb110f191b578d108d8f08d7c7a59e6c0b098a8e",
        "aws-xml-protocol-2.29.52.jar": "daf87b429373ad586d165003b5b1d4fe498c6472eb65ec9a9e2aa7d56f3917dd",
        "checksums-2.29.52.jar": "bca99ff25c9b917d6be03e5dce78ad5328e7dca485e96024fa8476e4192a800a",
        "checksums-spi-2.29.52.jar": "21193b9b648843dcaff493f0dd80abab9ee6871b203b9218120554698d8f7b8a",
        "crt-core-2.29.52.jar": "4e1f33de21b688695fec91b977ddfa99e9d376edcbad06a62b0c138c60b37de4",
        "endpoints-spi-2.29.52.jar": "e54f246c668d70b55cffe0c8fad18d4465e74e22db75139918bd30610093d1e6",
        "eventstream-1.0.1.jar": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
        "hadoop-aws-3.4.2.jar": "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
        "http-auth-2.29.52.jar": "d8aa3bd376aaec7196396e65fe8755f1fdd169e51357f8128ecdc7d23a687450",
        "http-auth-aws-2.29.52.jar": "7ae124e81ac0c2860bb61fdde34a388dbe823fef8509dd46a6bec805ada90308",
        "http-auth-aws-eventstream-2.29.52.jar": (
            "565a4aacce955c5ffaed551f6faaaa958e9e92b2f8514c8482f664edb2bab576"
        ),
        "http-auth-spi-2.29.52.jar": "7a2168c5a7baa856d7ae9f9c4f7522d2db9f1361108c38f5b6ece66f249e6a2d",
        "http-client-spi-2.29.52.jar": "8ea61ce3b527779fbfe119e0775c4b7cfdf274a979b1e50596a634685a5b6542",
        "identity-spi-2.29.52.jar": "85104635abf9e5c044aaf7f8951b63efc2ef82051b5ee303571ee2e1fd8b46d0",
        "json-utils-2.29.52.jar": "2652cdb3668311bcff6e643c8612b9fea266423ae1ce33743c84dd7f77904311",
        "metrics-spi-2.29.52.jar": "1db2e3da338148ee40a716e1733c9a5b99e9e6daa4db3aa8bd7e718adafa2510",
        "profiles-2.29.52.jar": "fef84619d101838ba45f48d0caddb09a85d9ed8bf869095bd7d2064796856cf7",
        "protocol-core-2.29.52.jar": "7b32e41a3743b422d2edec1670f60b4c1e512fcd5ab7a53fef20742d6b9104d1",
        "reactive-streams-1.0.4.jar": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
        "regions-2.29.52.jar": "5ee0e26277c679ffa70d83923b0d5f77a53066ecde8610f28be1856947d60eaf",
        "retries-2.29.52.jar": "ca3752ba31399721980c6398992921ff5aa164e084b4c14484333df58c76a353",
        "retries-spi-2.29.52.jar": "a4218ea742fc9e07a620629d7a258bfd92b8ea3ef75f1b99193d0898ca3efe99",
        "s3-2.29.52.jar": "abaedea7e68063e9c4ab090f80d14b9884c57b50953bfe6e5acaa23025609efa",
        "s3-transfer-manager-2.29.52.jar": "0c9e654637247187a7e2494eb7a8799477a772a7d554cd3ae787cd3e3bae3c55",
        "sdk-core-2.29.52.jar": "ea8e9856569f85075a8a806d0481c4bd848c98b24fd6d706fc0b5883fc4604dc",
        "sts-2.29.52.jar": "6495d0457f4e4c3724d8c9c5fe4f6f98c9530a22f92449c4cca5fd03622e4edb",
        "third-party-jackson-core-2.29.52.jar": (
            "eaece3eb60beb8ec09d8a4f48d5bff4110010b03cc23688bdcf2af2eb075cac6"
        ),
        "utils-2.29.52.jar": "f150a38f2fec14ced2de6459bfe804f647c88baa573b218646ef89b436a29d42",
    },
    "3.5.0": {
        "analyticsaccelerator-s3-1.3.1.jar": (
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e"
        ),
        "annotations-2.35.4.jar": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
        "apache-client-2.35.4.jar": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
        "arns-2.35.4.jar": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
        "auth-2.35.4.jar": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
        "aws-core-2.35.4.jar": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
        "aws-query-protocol-2.35.4.jar": ("9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f"),
        "aws-xml-protocol-2.35.4.jar": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
        "checksums-2.35.4.jar": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
        "checksums-spi-2.35.4.jar": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
        "crt-core-2.35.4.jar": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
        "endpoints-spi-2.35.4.jar": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
        "eventstream-1.0.1.jar": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
        "hadoop-aws-3.5.0.jar": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        "http-auth-2.35.4.jar": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
        "http-auth-aws-2.35.4.jar": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
        "http-auth-aws-eventstream-2.35.4.jar": (
            "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd"
        ),
        "http-auth-spi-2.35.4.jar": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
        "http-client-spi-2.35.4.jar": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
        "identity-spi-2.35.4.jar": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
        "json-utils-2.35.4.jar": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
        "metrics-spi-2.35.4.jar": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
        "profiles-2.35.4.jar": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
        "protocol-core-2.35.4.jar": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
        "reactive-streams-1.0.4.jar": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
        "regions-2.35.4.jar": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
        "retries-2.35.4.jar": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
        "retries-spi-2.35.4.jar": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
        "s3-2.35.4.jar": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
        "s3-transfer-manager-2.35.4.jar": (
            "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476"
        ),
        "sdk-core-2.35.4.jar": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
        "sts-2.35.4.jar": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
        "third-party-jackson-core-2.35.4.jar": (
            "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea"
        ),
        "utils-2.35.4.jar": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
        "utils-lite-2.35.4.jar": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
    },
}

AZURE_JARS: Final[Mapping[str, Mapping[str, str]]] = {
    "3.4.2": {
        "hadoop-azure-3.4.2.jar": "f02ab756037abaecc45ea1869144ad3a69e25ccd84062bc37805837ca254e21c",
        "azure-storage-7.0.1.jar": "32249cf9b550e247e257c0a508f93526d35e072509aa637fd33b3d54e267b1e2",
        "azure-keyvault-core-1.0.0.jar": "d8c6ca5bc1c50fd2c74d81b8731b67aa72fa5c9e086623439ba4e950138937a0",
        "hadoop-shaded-guava-1.4.0.jar": "a5dd4b1ca2521ad66cc555f784c4d35927171ed04d263d4b233cebab745430b5",
        "jetty-util-9.4.57.v20241219.jar": "6ccbf678716778e316cc097d8aada4fe2a2e16c0bbfd8a1763204d6724b423f4",
        "jetty-util-ajax-9.4.57.v20241219.jar": (
            "67af50dd7714803b1bcdfabac181dd8b279d0ba6ba7fd27ea80c5b2099016542"
        ),
        "wildfly-openssl-2.1.4.Final.jar": "95decbc5d088b40e85f58d7726b8c8f4e3be6312a0f2660c2d714a23cee80279",
    },
    "3.5.0": {
        "HdrHistogram-2.1.12.jar": "9b47fbae444feaac4b7e04f0ea294569e4bc282bc69d8c2ce2ac3f23577281e2",
        "azure-keyvault-core-1.0.0.jar": ("d8c6ca5bc1c50fd2c74d81b8731b67aa72fa5c9e086623439ba4e950138937a0"),
        "azure-storage-7.0.1.jar": "32249cf9b550e247e257c0a508f93526d35e072509aa637fd33b3d54e267b1e2",
        "hadoop-azure-3.5.0.jar": "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
        "hadoop-shaded-guava-1.5.0.jar": ("70d5c152622df6fffbf8836af7833215dc7acdd5d9c881af11b8c0fbf30cdc0a"),
        "wildfly-openssl-2.2.5.Final.jar": (
            "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154"
        ),
    },
}
